#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/sequence/position_map.hpp>

#include "attention/executor/blocks/block.hpp"
#include "attention/executor/slots.hpp"

/// What one rank does in a pass of a plan, with every slice of the plan resolved to a place in memory.
/// Neither Kokkos nor communication. Made once per plan, so that a plan that reads what a slot does not hold
/// is an error before the first message and not in the middle of a pass.
namespace annulus::executor {

/// One side of a message. Bytes leave from (or land in) the block itself, or a staging buffer when the block
/// is not contiguous or its type is not the wire's.
struct ProgramMessage {
  plan::TensorSlice slice;
  StridedBlock block;
  DType wire = DType::f32;
  int peer = 0;
  int staging = none;  ///< index of the staging buffer
  std::size_t bytes = 0;
  static constexpr int none = -1;
};

/// Messages that are posted together and waited for together.
struct Exchange {
  plan::Channel channel = plan::Channel::activations;
  std::vector<ProgramMessage> sends, receives;
  int wait = 0;  ///< step that waits for it
};

/// What becomes of landed data.
struct Action {
  enum class Kind : std::uint8_t { unpack, add, merge };
  Kind kind = Kind::add;
  StridedBlock from, to;          ///< unpack: `to` alone, out of the staging buffer; merge: the o blocks
  StridedBlock from_lse, to_lse;  ///< merge
  DType wire = DType::f32;
  int staging = ProgramMessage::none;
};

/// A block that is set to the neutral element of its sum, and the slice that it stands for from then on.
struct Cleared {
  plan::TensorSlice slice;
  StridedBlock block;
};

/// One call of a local kernel.
struct LocalCall {
  StridedBlock q, k, v;
  StridedBlock o, lse;              ///< forward: merged into; backward: lse is read
  StridedBlock d, d_o, dq, dk, dv;  ///< backward
  PositionMap q_positions, kv_positions;
  std::int64_t first_batch = 0;  ///< of the whole batch
  std::int64_t first_head = 0;   ///< of all query heads: which block lists of BlockLists are the call's
  bool finishes = false;         ///< forward: nobody touches its rows of O behind it (mark_finishing)
  std::int64_t pairs = 0;        ///< LocalWork::pairs, where a synthetic kernel is told them
};

/// How a compute is cut by batch and kv head while transfers are in flight, so that the executor can give the
/// transport a turn between the parts: transports like Open MPI move data only while somebody is inside one
/// of their calls.
struct Cutting {
  std::int64_t least_pairs =
      0;            ///< (query, key, head) triples, masked or not, that a part has at least; 0: never cut
  int threads = 1;  ///< every part keeps this many threads busy
};

/// What profilers call a step and its parts: "burst backward step 3", "burst backward step 3: compute q[1]
/// rows 0:16 x kv[1] rows 0:16 heads 0:4".
struct StepNames {
  std::string step, wait, post, compute;
};

struct ProgramStep {
  StepNames names;         ///< of profiling regions
  std::vector<int> waits;  ///< indices into Program::exchanges
  std::vector<Action> actions;
  std::vector<Cleared> clears;
  std::vector<int> posts;  ///< indices into Program::exchanges
  std::vector<LocalCall> computes;
};

struct Program {
  plan::Plan plan;  ///< what it was made of; to say in errors what other ranks do
  plan::Pass pass = plan::Pass::forward;
  int rank = 0;
  std::vector<Exchange> exchanges;
  std::vector<ProgramStep> steps;
  /// Forward: of the caller's O, what no local call finishes (LocalCall::finishes).
  std::vector<StridedBlock> unfinished;
  Capacity capacity;
};

/// Resolves the steps of `rank`. Throws Error naming schedule, rank and step when the plan cannot be run: it
/// reads what a slot does not hold, lands in the caller's inputs, or waits before it posts.
Program make_program(const plan::Plan& plan, int rank, const Cutting& cutting);

/// Sets LocalCall::finishes of all calls, and Program::unfinished. A call finishes where nothing behind it
/// computes, merges, receives or sends any of its rows of O.
void mark_finishing(Program& program);

/// Throws Error naming schedule, rank and step where a row of O is touched behind the call that finishes it,
/// or is neither finished nor listed as unfinished. Looks at the program from its beginning, where
/// mark_finishing does so from its end.
void check_finishing(const Program& program);

/// The call's part in its sequence `batch`, from 0.
LocalCall sequence_of(const LocalCall& call, std::int64_t batch);

}  // namespace annulus::executor
