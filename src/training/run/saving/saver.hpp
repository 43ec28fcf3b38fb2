#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>

#include "training/checkpoint/folder.hpp"
#include "training/checkpoint/writer.hpp"
#include "training/run/config/resolve.hpp"
#include "training/run/hooks.hpp"
#include "training/run/saving/snapshot.hpp"
#include "training/run/state/flat_buffer.hpp"
#include "training/run/state/learner.hpp"

namespace annulus::training {

/// Saves checkpoints: every rank writes its share, in a thread of its own while training goes on, and rank 0
/// makes a checkpoint of the parts when all are written. Calls are collective unless they say otherwise.
///
/// A save that fails on any rank leaves nothing but the error in the log: training goes on, the older
/// checkpoints stay.
class Saver {
 public:
  /// `folder`: rank 0's, else null. All outlive this. Takes the memory of a snapshot where `saving` needs
  /// one.
  Saver(comm::Communicator& world, Learner& learner, checkpoint::CheckpointFolder* folder,
        const Saving& saving, const Hooks& hooks);
  /// An exception ends the run: what is being written is brought to its end, unless another rank does not
  /// write its share any more. Not collective.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// Starts to save the state, which `progress` describes. Waits for the save under way first, and says in
  /// the log when that took seconds: the disk does not keep up. `last`: nothing changes the state any more,
  /// and it is saved on return.
  void save(const checkpoint::Progress& progress, bool last);

  /// Whether this rank still writes. Not collective.
  bool writing() const;
  /// A save under way ends here unless any rank still writes; `any_writing` is the same on all ranks.
  void advance(bool any_writing);
  /// Waits for the save under way.
  void finish();

  /// From here on the state before an optimizer step is saved when a signal asks the run to stop and the step
  /// would not end within Saving::stop_within of it: what AdamW has not changed yet is still the whole state.
  /// `signal`: the one that has come, or 0. Collective.
  void save_early(std::function<int()> signal);
  /// An optimizer step begins behind the state that `progress` describes, and will take some `seconds`; it
  /// has ended. Not collective.
  void begin_update(const checkpoint::Progress& progress, double seconds);
  void end_update();

  /// What AdamW asks before it changes elements before `end` of the master buffers. Not collective.
  void gate(std::int64_t end);

  int failed() const { return failed_; }             ///< saves, so far
  bool last_failed() const { return last_failed_; }  ///< of the saves that have ended, the last one
  /// Rank 0's: of the last checkpoint that was made; empty when there is none.
  const std::string& last_saved() const { return last_saved_; }

 private:
  struct UnderWay;
  class Early;

  std::filesystem::path agree_on_folder(std::int64_t step);
  std::string first_problem(const std::string& mine) const;
  /// Waits for the save under way as `step` is to be saved; warns when that took seconds.
  void finish_before(std::int64_t step);
  void start_writer();
  void write(UnderWay& save) const;
  checkpoint::Elements from_buffers(std::mutex& device, const Queue& queue) const;
  void make_checkpoint(const std::filesystem::path& parts, const checkpoint::Progress& progress);
  void join();
  void conclude(const std::string& problem);
  void finish_alone();

  comm::Communicator& world_;
  Learner& learner_;
  checkpoint::CheckpointFolder* folder_;
  const Saving saving_;
  const Hooks& hooks_;
  std::vector<checkpoint::StoredTensor> tensors_;
  std::vector<checkpoint::Slice> share_;
  Buffers buffers_;
  std::optional<Snapshot> snapshot_;
  std::unique_ptr<UnderWay> under_way_;
  double last_seconds_ = 0;  // that a save took
  double kept_waiting_ = 0;  // seconds for which saves waited for those before them
  double told_waiting_ = 0;  // those that the last warning has told of
  int failed_ = 0;
  bool last_failed_ = false;
  std::string last_saved_;
  std::unique_ptr<Early> early_;  // whose thread ends first
};

}  // namespace annulus::training
