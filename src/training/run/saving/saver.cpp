#include "training/run/saving/saver.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <limits>
#include <system_error>
#include <thread>
#include <utility>

#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/memory_use.hpp>

#include "attention/comm/agreement.hpp"
#include "attention/comm/watchdog.hpp"
#include "base/file.hpp"
#include "base/units.hpp"
#include "training/io/logging.hpp"
#include "training/io/progress_line.hpp"
#include "training/run/saving/checkpoint_parts.hpp"
#include "training/run/together.hpp"

namespace annulus::training {

namespace fs = std::filesystem;
using checkpoint::Buffer;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::int64_t everything = std::numeric_limits<std::int64_t>::max();
/// Threads that write a rank's share where something waits for it, the run or AdamW. In the background there
/// is one, which leaves the cores to training.
constexpr int urgent_writers = 4;
/// How long rank 0 waits for the parts of others when an exception ends its run.
constexpr std::chrono::seconds alone_timeout{20};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

/// A save that was started. The writer's thread and the rank's share it; `mutex` is of what both change.
struct Saver::UnderWay {
  checkpoint::Progress progress;
  fs::path folder;
  bool in_place = false;
  std::atomic<bool> awaited = false;  // by the run, which does nothing else
  Clock::time_point started = Clock::now();
  double waited = 0;  // seconds for which training did

  bool complete = false;  // a checkpoint already: by Early

  std::mutex starting;  // of the writer's thread
  std::thread writer;
  std::mutex mutex;
  std::condition_variable changed;
  std::int64_t passed = 0;  // elements before this offset are not needed any more
  bool done = false;
  std::string problem;  // why this rank's share was not written
};

/// A thread that saves the state before an optimizer step early, since the rank computes or waits for its
/// device. It acts where this rank itself has got the signal; rank 0 decides, the others find its folder. No
/// message is sent. Where a rank is past its gate the folder goes again, and the step is as good as done.
class Saver::Early {
 public:
  /// `folder`: of checkpoints, rank 0's name of it.
  Early(Saver& saver, std::function<int()> signal, fs::path folder)
      : saver_(saver),
        stop_within_(saver.saving_.stop_within),
        signal_(std::move(signal)),
        folder_(std::move(folder)),
        copies_(saver.buffers_.parameters.queue().new_stream()),
        thread_([this] { watch(); }) {}
  ~Early() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      updating_ = false;
      changed_.notify_all();
    }
    thread_.join();
  }

  void begin_update(const checkpoint::Progress& progress, double seconds) {
    const std::lock_guard lock(mutex_);
    progress_ = progress;
    expected_seconds_ = seconds;
    begun_ = Clock::now();
    updating_ = open_ = true;
    tried_ = false;
  }
  /// AdamW is about to change the state: returns when nothing of it is needed any more.
  void gate() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !writing_; });
    open_ = false;
  }
  /// The step is done: gives up what is not complete.
  void end_update() {
    std::unique_lock lock(mutex_);
    updating_ = open_ = false;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !busy_; });
  }

 private:
  static constexpr std::chrono::milliseconds pause{50};
  bool rank_zero() const { return saver_.folder_ != nullptr; }
  bool all_written(const fs::path& folder) const {
    return checkpoint::all_parts_written(folder, saver_.world_.size());
  }

  void watch() {
    std::unique_lock lock(mutex_);
    while (!ended_) {
      changed_.wait_for(lock, pause, [&] { return ended_; });
      if (ended_ || !open_ || tried_ || signal_() == 0) continue;
      if (asked_ == Clock::time_point()) asked_ = Clock::now();
      busy_ = true;
      save(lock);
      busy_ = false;
      changed_.notify_all();
    }
  }

  /// Rank 0's: what is left after a save would not suffice for the step, or nothing is left.
  bool is_time() const {
    const double left =
        static_cast<double>(stop_within_.count()) - seconds_since(asked_) - saver_.last_seconds_;
    return std::max(0.0, expected_seconds_ - seconds_since(begun_)) >= left;
  }

  void save(std::unique_lock<std::mutex>& lock) {
    if (rank_zero() && !is_time()) return;
    try {
      // A save of this state that is under way goes on.
      const UnderWay* const other = saver_.under_way_.get();
      const bool mine = other == nullptr || other->progress.step != progress_.step;
      // A name that all ranks know; what is left of it goes when the run starts again.
      const fs::path folder = mine ? folder_ / checkpoint::CheckpointFolder::name_of(progress_.step)
                                                   .append(checkpoint::CheckpointFolder::early_suffix)
                                   : other->folder;
      if (!mine) {
        saver_.start_writer();
      } else if (!write(lock, folder)) {
        tried_ = rank_zero();  // the others look again
        return;
      }
      tried_ = true;
      if (rank_zero()) complete(lock, folder, mine);
    } catch (const std::exception& error) {
      if (!lock.owns_lock()) lock.lock();
      tried_ = true;
      writing_ = false;
      changed_.notify_all();
      logging::error("the state after optimizer step {} was not saved before the end of the next: {}",
                     progress_.step, error.what());
    }
  }

  /// Writes this rank's part where rank 0 has made the folder.
  bool write(std::unique_lock<std::mutex>& lock, const fs::path& folder) {
    std::error_code error;
    require_no_link(folder, "the folder of a checkpoint");
    if (rank_zero()) fs::create_directories(folder, error);
    if (!fs::exists(folder, error)) return false;
    writing_ = true;
    lock.unlock();
    std::mutex device;
    checkpoint::write_part({.folder = folder,
                            .part = saver_.world_.rank(),
                            .parts = saver_.world_.size(),
                            .slices = saver_.share_,
                            .threads = urgent_writers},
                           saver_.tensors_, saver_.from_buffers(device, copies_), {});
    lock.lock();
    writing_ = false;
    changed_.notify_all();
    return true;
  }

  void complete(std::unique_lock<std::mutex>& lock, const fs::path& folder, bool mine) {
    while (updating_ && !all_written(folder)) changed_.wait_for(lock, pause);
    if (!all_written(folder)) {
      if (mine) checkpoint::CheckpointFolder::discard(folder);  // some rank was past its gate
      return;
    }
    lock.unlock();
    saver_.make_checkpoint(folder, progress_);
    if (!mine) saver_.under_way_->complete = true;
    lock.lock();
    logging::info(
        "saved the state after optimizer step {}, as the next one would not end within run.stop_within = {} "
        "s of the signal",
        progress_.step, stop_within_.count());
  }

  Saver& saver_;
  const std::chrono::seconds stop_within_;
  const std::function<int()> signal_;
  const fs::path folder_;
  const Queue copies_;  // a stream of its own on a device

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

Saver::Saver(comm::Communicator& world, Learner& learner, checkpoint::CheckpointFolder* folder,
             const Saving& saving, const Hooks& hooks)
    : world_(world),
      learner_(learner),
      folder_(folder),
      saving_(saving),
      hooks_(hooks),
      tensors_(tensors_of(learner.map())),
      share_(learner.state().share()),
      buffers_(learner.state().master_buffers()) {
  if (saving_.writer == Saving::Writer::snapshot) snapshot_.emplace(share_, buffers_);
}

Saver::~Saver() {
  early_.reset();
  if (!under_way_) return;
  try {
    finish_alone();
  } catch (const std::exception& error) {
    logging::error("the checkpoint of optimizer step {} was lost with the run: {}", under_way_->progress.step,
                   error.what());
  }
}

std::string Saver::first_problem(const std::string& mine) const {
  return problem_of([&] { comm::throw_together(world_, mine); });
}

fs::path Saver::agree_on_folder(std::int64_t step) {
  std::string name;
  std::string problem = problem_of([&] {
    if (folder_ != nullptr) name = folder_->begin(step).string();
  });
  name = share_text(world_, name);
  std::error_code error;
  if (!name.empty() && !fs::is_directory(name, error))
    problem = fmt::format(
        "the folder {} of rank 0 is not there on the machine {}: set run.folder to a folder that all "
        "machines of the run share",
        name, comm::machine_name());
  under_way_->folder = name;
  problem = first_problem(problem);
  if (!problem.empty()) conclude(problem);
  return name;
}

void Saver::save(const checkpoint::Progress& progress, bool last) {
  finish_before(progress.step);
  under_way_ = std::make_unique<UnderWay>();
  under_way_->progress = progress;
  under_way_->in_place = last || saving_.writer == Saving::Writer::in_place;
  const Clock::time_point begin = Clock::now();
  if (agree_on_folder(progress.step).empty() || !under_way_) return;
  if (under_way_->in_place) {
    write(*under_way_);
    finish();
    return;
  }
  if (saving_.writer == Saving::Writer::snapshot) snapshot_->take();
  // The copy of a device is under way; its writer starts when the copy is there (gate).
  if (buffers_.parameters.queue().is_host()) start_writer();
  under_way_->waited += seconds_since(begin);
}

void Saver::finish_before(std::int64_t step) {
  if (!under_way_) return;
  const std::int64_t before = under_way_->progress.step;
  const Clock::time_point begin = Clock::now();
  finish();
  // A save that ends while the next one begins costs nothing worth a word.
  constexpr double worth_a_word = 1;
  kept_waiting_ += seconds_since(begin);
  if (folder_ == nullptr || kept_waiting_ < told_waiting_ + worth_a_word) return;
  logging::warn(
      "the disk does not keep up: the checkpoint of optimizer step {} waited for that of step {}; such waits "
      "have cost {:.1f} s so far (raise checkpoint.every)",
      step, before, kept_waiting_);
  told_waiting_ = kept_waiting_;
}

void Saver::start_writer() {
  const std::lock_guard lock(under_way_->starting);
  if (under_way_->writer.joinable()) return;
  if (saving_.writer == Saving::Writer::snapshot) snapshot_->wait();
  under_way_->writer = std::thread([this, save = under_way_.get()] { write(*save); });
}

/// The state as it is, which `queue` copies from a device, one thread at a time.
checkpoint::Elements Saver::from_buffers(std::mutex& device, const Queue& queue) const {
  return [this, &device, &queue](Buffer buffer, std::int64_t offset, std::int64_t count) {
    const FlatBuffer& from = buffer_of(buffers_, buffer);
    if (from.queue().is_host()) return from.on_host(offset, count);
    thread_local std::vector<float> values;
    values.resize(static_cast<std::size_t>(count));
    const std::lock_guard lock(device);
    from.enqueue_read(queue, offset, values);
    queue.fence("annulus::training::Saver: the host writes the values");
    return std::span<const float>(values);
  };
}

void Saver::write(UnderWay& save) const {
  const bool copied = saving_.writer == Saving::Writer::snapshot && !save.in_place;
  std::mutex device;
  const checkpoint::Elements buffers = from_buffers(device, buffers_.parameters.queue());
  const checkpoint::Elements elements = [&](Buffer buffer, std::int64_t offset, std::int64_t count) {
    return copied ? snapshot_->elements(buffer, offset, count) : buffers(buffer, offset, count);
  };
  std::string problem = problem_of([&] {
    std::optional<io::ProgressLine> line;  // shows while the run waits
    if (folder_ != nullptr)
      line.emplace(fmt::format("saving optimizer step {}", save.progress.step),
                   Snapshot::bytes(elements_of(share_)));
    std::int64_t bytes = 0;
    std::mutex shown;  // of line and bytes
    checkpoint::write_part(
        {.folder = save.folder,
         .part = world_.rank(),
         .parts = world_.size(),
         .slices = copied ? snapshot_->slices() : share_,
         .threads = copied ? 1 : urgent_writers},
        tensors_,
        [&](Buffer buffer, std::int64_t offset, std::int64_t count) {
          {
            const std::lock_guard lock(shown);
            bytes += count * static_cast<std::int64_t>(sizeof(float));
            if (line && (save.in_place || save.awaited)) line->show(bytes);
          }
          if (hooks_.writing) hooks_.writing(world_.rank());
          return elements(buffer, offset, count);
        },
        [&](std::int64_t offset) {
          const std::lock_guard lock(save.mutex);
          save.passed = offset;
          save.changed.notify_all();
        });
  });
  const std::lock_guard lock(save.mutex);
  save.problem = std::move(problem);
  save.passed = everything;
  save.done = true;
  save.changed.notify_all();
}

void Saver::save_early(std::function<int()> signal) {
  const fs::path folder =
      share_text(world_, folder_ != nullptr ? fs::absolute(folder_->path()).string() : std::string());
  early_ = std::make_unique<Early>(*this, std::move(signal), folder);
}

void Saver::begin_update(const checkpoint::Progress& progress, double seconds) {
  if (early_) early_->begin_update(progress, seconds);
}

void Saver::end_update() {
  if (early_) early_->end_update();
}

void Saver::gate(std::int64_t end) {
  if (early_) early_->gate();
  if (!under_way_ || under_way_->in_place) return;
  const Clock::time_point begin = Clock::now();
  start_writer();
  if (saving_.writer == Saving::Writer::live) {
    std::unique_lock lock(under_way_->mutex);
    // Behind the last element of the share nothing is read.
    const std::int64_t needed =
        std::min(end, share_.empty() ? std::int64_t{0} : share_.back().offset + share_.back().size());
    under_way_->changed.wait(lock, [&] { return under_way_->passed >= needed; });
  }
  under_way_->waited += seconds_since(begin);
}

bool Saver::writing() const {
  if (!under_way_) return false;
  const std::lock_guard lock(under_way_->mutex);
  return !under_way_->done;
}

void Saver::join() {
  if (!under_way_->in_place) start_writer();
  if (under_way_->writer.joinable()) under_way_->writer.join();
}

void Saver::advance(bool any_writing) {
  if (under_way_ && !any_writing) finish();
}

void Saver::finish() {
  if (!under_way_) return;
  const comm::Watchdog::ActivityScope activity(
      world_.watchdog(),
      fmt::format("the checkpoint of optimizer step {}, which every rank writes its part of",
                  under_way_->progress.step),
      saving_.file_timeout);
  const Clock::time_point begin = Clock::now();
  under_way_->awaited = true;
  join();
  std::string problem = first_problem(under_way_->problem);
  if (problem.empty()) {
    problem = first_problem(problem_of([&] {
      if (folder_ != nullptr && !under_way_->complete)
        make_checkpoint(under_way_->folder, under_way_->progress);
    }));
  }
  under_way_->waited += seconds_since(begin);
  conclude(problem);
}

void Saver::make_checkpoint(const fs::path& parts, const checkpoint::Progress& progress) {
  checkpoint::write_manifest(parts, progress, tensors_, world_.size());
  folder_->commit(parts, progress.step);
}

void Saver::conclude(const std::string& problem) {
  const std::unique_ptr<UnderWay> save = std::move(under_way_);
  last_failed_ = !problem.empty();
  failed_ += last_failed_ ? 1 : 0;
  if (folder_ == nullptr) return;
  if (last_failed_) {
    if (!save->folder.empty()) checkpoint::CheckpointFolder::discard(save->folder);
    logging::error("the checkpoint of optimizer step {} was not saved, training goes on: {}",
                   save->progress.step, problem);
    return;
  }
  last_saved_ = folder_->path_of(save->progress.step).string();
  const double seconds = last_seconds_ = seconds_since(save->started);
  const std::int64_t bytes = Snapshot::bytes(learner_.map().size());
  logging::info("saved {} ({} in {:.2f} s, {}/s; training waited {:.2f} s)", last_saved_, bytes_text(bytes),
                seconds, bytes_text(std::llround(double(bytes) / std::max(seconds, 1e-9))), save->waited);
}

void Saver::finish_alone() {
  join();
  if (folder_ == nullptr) return;
  UnderWay& save = *under_way_;
  const Clock::time_point begin = Clock::now();
  while (save.problem.empty() && !checkpoint::all_parts_written(save.folder, world_.size())) {
    if (Clock::now() - begin > alone_timeout) save.problem = "another rank has not written its part";
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (save.problem.empty() && !save.complete) make_checkpoint(save.folder, save.progress);
  conclude(save.problem);
}

}  // namespace annulus::training
