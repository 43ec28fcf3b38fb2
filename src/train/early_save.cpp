#include "train/early_save.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include <annulus/base/file.hpp>

namespace annulus::train {

namespace fs = std::filesystem;

namespace {

constexpr std::chrono::milliseconds pause{50};

}  // namespace

EarlySave::EarlySave(std::chrono::seconds stop_within, bool rank_zero, Work work)
    : stop_within_(stop_within),
      rank_zero_(rank_zero),
      work_(std::move(work)),
      thread_([this] { watch(); }) {}

EarlySave::~EarlySave() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    updating_ = false;
    changed_.notify_all();
  }
  thread_.join();
}

void EarlySave::begin_update(const checkpoint::Progress& progress, double seconds) {
  const std::lock_guard lock(mutex_);
  progress_ = progress;
  expected_seconds_ = seconds;
  begun_ = Clock::now();
  updating_ = open_ = true;
  tried_ = false;
}

void EarlySave::gate() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !writing_; });
  open_ = false;
}

void EarlySave::end_update() {
  std::unique_lock lock(mutex_);
  updating_ = open_ = false;
  changed_.notify_all();
  changed_.wait(lock, [&] { return !busy_; });
}

void EarlySave::watch() {
  std::unique_lock lock(mutex_);
  while (!ended_) {
    changed_.wait_for(lock, pause, [&] { return ended_; });
    if (ended_ || !open_ || tried_ || work_.signal() == 0) continue;
    if (asked_ == Clock::time_point()) asked_ = Clock::now();
    busy_ = true;
    save(lock);
    busy_ = false;
    changed_.notify_all();
  }
}

/// Rank 0's: what is left after a save would not suffice for the step, or nothing is left.
bool EarlySave::is_time(Clock::time_point now) {
  const auto seconds = [](Clock::duration time) { return std::chrono::duration<double>(time).count(); };
  const double left = seconds(asked_ + stop_within_ - now) - work_.save_seconds();
  return std::max(0.0, expected_seconds_ - seconds(now - begun_)) >= left;
}

void EarlySave::save(std::unique_lock<std::mutex>& lock) {
  if (rank_zero_ && !is_time(Clock::now())) return;
  fs::path folder;
  bool mine = false;  // rather than of a save that was under way
  try {
    folder = work_.under_way(progress_.step);
    if (folder.empty()) {
      folder = work_.folder(progress_.step);
      std::error_code error;
      require_no_link(folder, "the folder of a checkpoint");
      if (rank_zero_) fs::create_directories(folder, error);
      if (!fs::exists(folder, error)) {
        tried_ = rank_zero_;  // the others look again
        return;
      }
      mine = writing_ = true;
      lock.unlock();
      work_.write(folder);
      lock.lock();
      writing_ = false;
      changed_.notify_all();
    }
    tried_ = true;
    if (rank_zero_) complete(lock, folder, mine);
  } catch (const std::exception& error) {
    if (!lock.owns_lock()) lock.lock();
    tried_ = true;
    writing_ = false;
    changed_.notify_all();
    spdlog::error("the state after optimizer step {} was not saved before the end of the next: {}",
                  progress_.step, error.what());
  }
}

void EarlySave::complete(std::unique_lock<std::mutex>& lock, const fs::path& folder, bool mine) {
  while (updating_ && !work_.all_written(folder)) changed_.wait_for(lock, pause);
  if (!work_.all_written(folder)) {
    std::error_code error;
    if (mine) fs::remove_all(folder, error);  // some rank was past its gate
    return;
  }
  lock.unlock();
  work_.complete(folder, progress_);
  lock.lock();
  spdlog::info(
      "saved the state after optimizer step {}, as the next one would not end within run.stop_within = {} s "
      "of the signal",
      progress_.step, stop_within_.count());
}

}  // namespace annulus::train
