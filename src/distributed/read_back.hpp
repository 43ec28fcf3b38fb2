#pragma once

#include <cstdint>
#include <vector>

#include <annulus/plan/plan.hpp>

#include "distributed/held_slices.hpp"
#include "distributed/program.hpp"

namespace annulus::distributed {

/// Steps of a plan, read back from the program that the executor runs: slices from places in memory, what
/// becomes of a message from the actions that follow its wait. The plan that the program was made of is not
/// asked. What a proof of these steps shows is thus true of what runs.
class ReadBack {
 public:
  /// Throws Error as `step` does. The program outlives this.
  explicit ReadBack(const Program& program);
  ReadBack(const ReadBack&) = delete;
  ReadBack& operator=(const ReadBack&) = delete;

  /// The next step. Throws Error naming schedule, rank and step where the program does what no step can say:
  /// a block that is no slice of what its slot holds, a message or an action that is lost, a buffer that is
  /// too small or in use.
  plan::Step step();

 private:
  /// What the program does with a receive when it has been waited for.
  struct Arrived {
    plan::OnReceive on_receive = plan::OnReceive::store;
    plan::Slot target = plan::local_slot;
    bool acted = false, unpacked = false;
  };
  struct Call {
    plan::Compute compute;
    std::int64_t first_batch = 0, batches = 0;
  };

  void find_waits();
  void find_arrivals(int step);
  Arrived* landed(int step, const Block& block);
  void take_waits(const ProgramStep& now);
  void take_actions(const ProgramStep& now);
  void check_target(const Block& target, const plan::TensorSlice& landed);
  void take_posts(const ProgramStep& now, plan::Step& step);
  plan::Transfer transfer(const Message& message, const Exchange& exchange, int wait);
  void occupy(const Message& message, int exchange);
  void take_computes(const ProgramStep& now, plan::Step& step);
  void add_joined(const std::vector<Call>& calls, plan::Step& step) const;
  Call read(const LocalCall& call);

  const Program& program_;
  const plan::Problem& problem_;
  Site site_;
  HeldSlices places_;
  std::vector<int> waits_;                      // [exchange]: the step that waits for it
  std::vector<bool> posted_;                    // [exchange]
  std::vector<std::vector<Arrived>> arrivals_;  // [exchange][receive]
  std::vector<int> staging_users_;              // [staging buffer]: exchange that uses it, or Message::none
};

}  // namespace annulus::distributed
