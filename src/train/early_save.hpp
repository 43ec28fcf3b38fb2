#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>

#include <annulus/checkpoint/state.hpp>

namespace annulus::train {

/// Saves the state before an optimizer step when a signal asks the run to stop and the step would not end in
/// time: what AdamW has not changed yet is still the whole state. A thread of its own, since the rank
/// computes or waits for its device. It acts where this rank itself has got the signal; rank 0 decides, the
/// others find its folder. No message is sent. Where a rank is past its gate the folder goes again, and the
/// step is as good as done.
class EarlySave {
 public:
  /// What it needs of the rank. Called by its thread, between begin_update and end_update alone.
  struct Work {
    std::function<int()> signal;  ///< that asks to stop; 0: none
    /// Seconds that a save takes.
    std::function<double()> save_seconds;
    /// Where a save of this step is under way: goes on with it, and gives its folder; else empty.
    std::function<std::filesystem::path(std::int64_t step)> under_way;
    /// The folder in which the parts of a step are to be written.
    std::function<std::filesystem::path(std::int64_t step)> folder;
    std::function<void(const std::filesystem::path& folder)> write;  ///< this rank's part
    /// Whether the parts of all ranks are there.
    std::function<bool(const std::filesystem::path& folder)> all_written;
    /// Rank 0's: makes a checkpoint of them.
    std::function<void(const std::filesystem::path& folder, const checkpoint::Progress&)> complete;
  };

  /// `stop_within`: from the signal to the end of the run.
  EarlySave(std::chrono::seconds stop_within, bool rank_zero, Work work);
  ~EarlySave();
  EarlySave(const EarlySave&) = delete;
  EarlySave& operator=(const EarlySave&) = delete;

  /// An optimizer step begins behind the state that `progress` describes, and will take some `seconds`.
  void begin_update(const checkpoint::Progress& progress, double seconds);
  /// AdamW is about to change the state: returns when nothing of it is needed any more.
  void gate();
  /// The step is done: gives up what is not complete.
  void end_update();

 private:
  using Clock = std::chrono::steady_clock;

  void watch();
  bool is_time(Clock::time_point now);
  void save(std::unique_lock<std::mutex>& lock);
  void complete(std::unique_lock<std::mutex>& lock, const std::filesystem::path& folder, bool mine);

  const std::chrono::seconds stop_within_;
  const bool rank_zero_;
  const Work work_;

  std::mutex mutex_;  // of all that follows
  std::condition_variable changed_;
  bool ended_ = false;     // the run
  bool updating_ = false;  // between begin_update and end_update
  bool open_ = false;      // the state is whole: before the gate
  bool tried_ = false;     // in this step
  bool writing_ = false;   // the thread reads the state
  bool busy_ = false;      // the thread is in save()
  checkpoint::Progress progress_;
  double expected_seconds_ = 0;
  Clock::time_point begun_, asked_{};  // the step; when the signal was seen
  std::thread thread_;
};

}  // namespace annulus::train
