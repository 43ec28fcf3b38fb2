#include "train/saver.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include <annulus/base/error.hpp>
#include <annulus/comm/agreement.hpp>
#include <annulus/core/memory_use.hpp>
#include <annulus/io/progress_line.hpp>

#include "train/checkpoint_parts.hpp"
#include "train/share_text.hpp"

namespace annulus::train {

namespace fs = std::filesystem;
using checkpoint::Buffer;
using checkpoint::Slice;
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

  bool complete = false;  // a checkpoint already: by EarlySave

  std::mutex starting;  // of the writer's thread
  std::thread writer;
  std::mutex mutex;
  std::condition_variable changed;
  std::int64_t passed = 0;  // elements before this offset are not needed any more
  bool done = false;
  std::string problem;  // why this rank's share was not written
};

Saving saving_of(const Config& config) {
  const bool only_last = config.checkpoint.every == 0 || config.checkpoint.every >= config.train.steps;
  return only_last ? Saving::in_place : config.memory.offload_optimizer ? Saving::live : Saving::snapshot;
}

Saver::Saver(comm::Communicator& world, Learner& learner, checkpoint::CheckpointFolder* folder, Saving saving,
             std::chrono::milliseconds file_timeout, const Hooks& hooks)
    : world_(world),
      learner_(learner),
      folder_(folder),
      saving_(saving),
      file_timeout_(file_timeout),
      hooks_(hooks),
      tensors_(tensors_of(learner.map())),
      share_(learner.state().share()),
      buffers_(learner.state().master_buffers()) {
  if (saving_ == Saving::snapshot) snapshot_.emplace(share_, buffers_);
}

Saver::~Saver() {
  early_.reset();
  if (!under_way_) return;
  try {
    finish_alone();
  } catch (const std::exception& error) {
    spdlog::error("the checkpoint of optimizer step {} was lost with the run: {}", under_way_->progress.step,
                  error.what());
  }
}

std::string Saver::first_problem(const std::string& mine) const {
  try {
    comm::throw_together(world_, mine);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

fs::path Saver::agree_on_folder(std::int64_t step) {
  std::string name, problem;
  if (folder_ != nullptr) try {
      name = folder_->begin(step).string();
    } catch (const std::exception& error) {
      problem = error.what();
    }
  name = share_text(world_, name);
  std::error_code error;
  if (!name.empty() && !fs::is_directory(name, error))
    problem = fmt::format(
        "the folder {} of rank 0 is not there on the machine {}: set run.folder to a folder that all "
        "machines "
        "of the run share",
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
  under_way_->in_place = last || saving_ == Saving::in_place;
  const Clock::time_point begin = Clock::now();
  if (agree_on_folder(progress.step).empty() || !under_way_) return;
  if (under_way_->in_place) {
    write(*under_way_);
    finish();
    return;
  }
  if (saving_ == Saving::snapshot) snapshot_->take();
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
  spdlog::warn(
      "the disk does not keep up: the checkpoint of optimizer step {} waited for that of step {}; such waits "
      "have cost {:.1f} s so far (raise checkpoint.every)",
      step, before, kept_waiting_);
  told_waiting_ = kept_waiting_;
}

void Saver::start_writer() {
  const std::lock_guard lock(under_way_->starting);
  if (under_way_->writer.joinable()) return;
  if (saving_ == Saving::snapshot) snapshot_->wait();
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
    queue.fence("annulus::train::Saver: the host writes the values");
    return std::span<const float>(values);
  };
}

void Saver::write(UnderWay& save) const {
  const bool copied = saving_ == Saving::snapshot && !save.in_place;
  std::mutex device;
  const checkpoint::Elements buffers = from_buffers(device, buffers_.parameters.queue());
  const checkpoint::Elements elements = [&](Buffer buffer, std::int64_t offset, std::int64_t count) {
    return copied ? snapshot_->elements(buffer, offset, count) : buffers(buffer, offset, count);
  };
  std::string problem;
  try {
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
  } catch (const std::exception& error) {
    problem = error.what();
  }
  const std::lock_guard lock(save.mutex);
  save.problem = std::move(problem);
  save.passed = everything;
  save.done = true;
  save.changed.notify_all();
}

void Saver::save_early(std::chrono::seconds stop_within, std::function<int()> signal) {
  const fs::path folder =
      share_text(world_, folder_ != nullptr ? fs::absolute(folder_->path()).string() : std::string());
  EarlySave::Work work;
  work.signal = std::move(signal);
  work.save_seconds = [this] { return last_seconds_; };
  work.under_way = [this](std::int64_t step) {
    if (!under_way_ || under_way_->progress.step != step) return fs::path();
    start_writer();
    return under_way_->folder;
  };
  // A name that all ranks know; what is left of it goes when the run starts again.
  work.folder = [folder](std::int64_t step) {
    return folder /
           checkpoint::CheckpointFolder::name_of(step).append(checkpoint::CheckpointFolder::early_suffix);
  };
  work.write = [this, queue = buffers_.parameters.queue().new_stream()](const fs::path& into) {
    std::mutex device;
    checkpoint::write_part({.folder = into,
                            .part = world_.rank(),
                            .parts = world_.size(),
                            .slices = share_,
                            .threads = urgent_writers},
                           tensors_, from_buffers(device, queue), {});
  };
  work.all_written = [this](const fs::path& in) { return checkpoint::all_parts_written(in, world_.size()); };
  work.complete = [this](const fs::path& of, const checkpoint::Progress& progress) {
    checkpoint::write_manifest(of, progress, tensors_, world_.size());
    folder_->commit(of, progress.step);
    if (under_way_ && under_way_->folder == of) under_way_->complete = true;
  };
  early_ = std::make_unique<EarlySave>(stop_within, folder_ != nullptr, std::move(work));
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
  if (saving_ == Saving::live) {
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
      file_timeout_);
  const Clock::time_point begin = Clock::now();
  under_way_->awaited = true;
  join();
  std::string problem = first_problem(under_way_->problem);
  if (problem.empty()) {
    std::string mine;
    if (folder_ != nullptr) try {
        make_checkpoint();
      } catch (const std::exception& error) {
        mine = error.what();
      }
    problem = first_problem(mine);
  }
  under_way_->waited += seconds_since(begin);
  conclude(problem);
}

void Saver::make_checkpoint() {
  const UnderWay& save = *under_way_;
  if (save.complete) return;
  checkpoint::write_manifest(save.folder, save.progress, tensors_, world_.size());
  folder_->commit(save.folder, save.progress.step);
}

void Saver::conclude(const std::string& problem) {
  const std::unique_ptr<UnderWay> save = std::move(under_way_);
  last_failed_ = !problem.empty();
  failed_ += last_failed_ ? 1 : 0;
  if (folder_ == nullptr) return;
  if (last_failed_) {
    if (!save->folder.empty()) checkpoint::CheckpointFolder::discard(save->folder);
    spdlog::error("the checkpoint of optimizer step {} was not saved, training goes on: {}",
                  save->progress.step, problem);
    return;
  }
  last_saved_ = folder_->path_of(save->progress.step).string();
  const double seconds = last_seconds_ = seconds_since(save->started);
  const std::int64_t bytes = Snapshot::bytes(learner_.map().size());
  spdlog::info("saved {} ({} in {:.2f} s, {}/s; training waited {:.2f} s)", last_saved_, bytes_text(bytes),
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
  if (save.problem.empty()) make_checkpoint();
  conclude(save.problem);
}

}  // namespace annulus::train
