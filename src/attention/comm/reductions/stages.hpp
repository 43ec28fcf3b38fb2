#pragma once

#include <functional>
#include <vector>

#include <annulus/base/kokkos/queue.hpp>

#include <annulus/attention/comm/communicator.hpp>

namespace annulus::comm {

/// Messages of a collective that may be posted together. Those of a later stage hand on what earlier ones
/// have brought, so a rank posts them when the stages before are complete on it.
struct CollectiveStage {
  std::vector<Send> sends;
  std::vector<Receive> receives;
  /// Enqueues work on what earlier stages have brought, of which the messages send the result. May be empty;
  /// the first stage has none.
  std::function<void(const Queue&)> before = {};
  bool empty() const { return sends.empty() && receives.empty(); }
};

/// For transports without an order of their own (NCCL has that of streams): posts the first stage, and each
/// later one when the one before is complete. `post(stage, number)` starts stage `number`; it may be called
/// as long as the request lives.
///
/// The host posts the later stages: in wait() and test() of the request, and, as the thread that called this,
/// whenever it is inside comm for another reason (advance_stages). Therefore no stage is the cause of a
/// deadlock. A collective's first stage is posted on every rank where it is started. A rank that has not
/// posted a later stage whose turn it is computes, or is inside comm: there it posts it, whatever it waits
/// for. So stages complete one after the other, as if the network passed them on by itself, and who waits for
/// whom is decided by the order of the calls alone. Waits that cannot look aside, those inside calls of MPI,
/// come behind MpiCommunicator::meet.
Request post_in_turn(std::vector<CollectiveStage> stages,
                     std::function<Request(const CollectiveStage&, int number)> post);

/// Collectives that this thread has started have stages that are not posted yet.
bool stages_under_way();

/// Posts those whose turn has come. Errors are kept for the collective's own request.
void advance_stages();

}  // namespace annulus::comm
