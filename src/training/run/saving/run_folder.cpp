#include "training/run/saving/run_folder.hpp"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include <annulus/base/error.hpp>

#include "base/file.hpp"
#include "training/checkpoint/kept_files.hpp"
#include "training/io/atomic.hpp"
#include "training/io/logging.hpp"

namespace annulus::training {

namespace fs = std::filesystem;

ResumePolicy ResumePolicy::parse(const std::string& text) {
  if (text == "auto") return {};
  if (text == "never") return {Kind::never, {}};
  std::error_code error;
  require(fs::exists(text, error),
          "--resume {}: give auto, never or a checkpoint, a folder or a file; there is none of that name",
          text);
  return {Kind::file, text};
}

namespace {

// The folder, which is there from here on and can be written.
const fs::path& made(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  const bool writable = !error && ::access(folder.c_str(), W_OK) == 0;
  require(writable, "run.folder = '{}' cannot be {} ({}): check its permissions or choose another",
          folder.string(), error ? "made" : "written", error ? error.message() : std::strerror(errno));
  return folder;
}

constexpr const char* attention_file = "attention.jsonl";

// Rather at the start than when the first checkpoint is saved, hours later.
void require_place_for(const checkpoint::CheckpointFolder& checkpoints) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(checkpoints.path(), error);
  if (!fs::exists(status)) return;
  require(fs::is_directory(status),
          "'{}' is no folder, and checkpoints go there: move it away or choose another run.folder",
          checkpoints.path().string());
  require(
      ::access(checkpoints.path().c_str(), W_OK | X_OK) == 0,
      "the checkpoint folder '{}' cannot be written ({}): check its permissions or choose another run.folder",
      checkpoints.path().string(), std::strerror(errno));
}

/// Appends to a file that no link leads away from the run folder; spdlog's own would follow one, and wait for
/// the other end of a pipe.
class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FileSink(const fs::path& file) : file_(open_own_file(file)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (!write_all(file_.get(), {line.data(), line.size()}))
      throw spdlog::spdlog_ex("train.log cannot be written", errno);
  }
  void flush_() override {}

  Descriptor file_;
};

}  // namespace

RunLog::RunLog(const fs::path& folder) : sink_(std::make_shared<FileSink>(folder / "train.log")) {
  sink_->set_pattern("%Y-%m-%d %H:%M:%S %l %v");
  spdlog::default_logger()->sinks().push_back(sink_);
}

RunLog::~RunLog() {
  std::erase(spdlog::default_logger()->sinks(), sink_);
}

RunFolder::RunFolder(Config config, const ResumePolicy& resume)
    : config_(std::move(config)),
      resume_(resume),
      schedule_steps_(config_.train.schedule_steps),
      folder_(config_.run.folder),
      lock_(made(folder_), {.file = "run.lock",
                            .in_use = fmt::format("run.folder = '{}' is in use by another run (it holds "
                                                  "run.lock): wait for it, or choose another folder",
                                                  folder_.string())}),
      log_(folder_),
      checkpoints_(folder_ / "checkpoints",
                   {.keep = config_.checkpoint.keep, .keep_every = config_.checkpoint.keep_every}) {
  if (!lock_.missing().empty())
    logging::warn("{} cannot be locked ({}): see to it that no other run uses this folder",
                  (folder_ / "run.lock").string(), lock_.missing());
  require_place_for(checkpoints_);
  checkpoints_.remove_leftovers();
  find_checkpoint();
  adopt();
}

// The run goes on from resume_from_, or begins.
void RunFolder::adopt() {
  if (resume_from_) {
    before_ = Config::parse_stored(resume_from_->progress().config, resume_from_->path().string());
    // A checkpoint in a folder that has none yet begins a run of its own, whose recipe may be another.
    const bool branch = resume_.kind == ResumePolicy::Kind::file && checkpoints_.steps().empty();
    require_compatible(branch ? Continuation::branch : Continuation::same_run);
    if (branch) {
      const fs::path kept = checkpoint::kept_files_of(resume_.checkpoint);
      checkpoint::write_kept_files(
          folder_, kept.empty() ? checkpoint::KeptFiles() : checkpoint::read_kept_files(kept));
    }
  }
  // The learning rate stays on its curve, however long the run is to be.
  // A curve that had no end gets its end from there.
  const bool keeps_end = before_ && before_->learning_rate().ends();
  config_.train.schedule_steps = schedule_steps_ > 0 ? schedule_steps_
                                 : keeps_end         ? before_->schedule_steps()
                                                     : config_.steps();
  config_.check();
  // A folder without checkpoints has no past to be true to: its configuration is replaced.
  io::write_text_atomically(folder_ / "config.toml", config_.to_toml(), Links::refuse);
}

void RunFolder::pass_over(const std::string& problem) {
  require(resume_.kind == ResumePolicy::Kind::automatic, "{}", problem);
  logging::warn("passing over a damaged checkpoint: {}", problem);
  const std::int64_t step = resume_from_->progress().step;
  checkpoints_.pass_over(step);
  resume_from_ = checkpoints_.newest_good(step);
  adopt();
}

void RunFolder::find_checkpoint() {
  const auto steps = checkpoints_.steps();
  switch (resume_.kind) {
    case ResumePolicy::Kind::automatic:
      resume_from_ = checkpoints_.newest_good();
      return;
    case ResumePolicy::Kind::never:
      require(steps.empty(),
              "run.folder = '{}' already holds a run: choose another folder, or drop --resume never to go on "
              "with it",
              folder_.string());
      return;
    case ResumePolicy::Kind::file:
      resume_from_.emplace(resume_.checkpoint);
      const std::int64_t step = resume_from_->progress().step;
      require(steps.empty() || steps.back() <= step,
              "--resume {}: run.folder = '{}' holds later checkpoints (up to optimizer step {}), which would "
              "be mixed with those of the new run: choose another run.folder, or remove them",
              resume_.checkpoint.string(), folder_.string(), steps.empty() ? 0 : steps.back());
  }
}

void RunFolder::require_compatible(Continuation continuation) const {
  const auto for_branch = incompatible(*before_, config_, Continuation::branch);
  for (const Difference& d : incompatible(*before_, config_, continuation))
    fail("{} = {} differs from {}, with which {} was made: take the old value, {}", d.key, d.after, d.before,
         resume_from_->path().string(),
         continuation == Continuation::branch ? "or start anew without --resume"
         : std::ranges::find(for_branch, d.key, &Difference::key) != for_branch.end()
             ? "or start anew in another run.folder"
             : "start anew in another run.folder, or branch off with --resume PATH in another run.folder");
}

void RunFolder::start_metrics(std::int64_t step) {
  const fs::path file = folder_ / "metrics.jsonl";
  const auto number = [](const nlohmann::json& record, const char* key) {  // null where it is not finite
    return record.contains(key) && record[key].is_number() ? record[key].get<double>() : std::nan("");
  };
  io::filter_json_lines(file, [&](const nlohmann::json& record) {
    const bool stays = record.value("step", std::int64_t{0}) <= step;
    if (stays) spikes_.observe(number(record, "loss"), number(record, "grad_norm"));
    return stays;
  });
  metrics_ = io::JsonLinesWriter(file, io::JsonLinesWriter::Mode::append);
  io::filter_json_lines(folder_ / attention_file, [&](const nlohmann::json& record) {
    return record.value("step", std::int64_t{0}) <= step;
  });
}

void RunFolder::write_metrics(const nlohmann::json& record) {
  const bool in_place = lock_.in_place();
  if (!in_place && !moved_)
    logging::error(
        "run.folder = '{}' was deleted, renamed or replaced while the run goes on: log and metrics go to the "
        "files that are open (deleted ones are lost), checkpoints to a new folder of that name: put it back, "
        "or stop the run and start it again",
        folder_.string());
  moved_ = !in_place;
  add_record([&] {
    metrics_.write(record);
    if (!config_.run.tensorboard) return;
    if (!events_) events_.emplace(folder_, record.at("started_after"));
    events_->write(record.at("step"), "train", record);
  });
}

void RunFolder::write_attention(const nlohmann::json& record) {
  add_record([&] {
    if (!attention_.is_open())
      attention_ = io::JsonLinesWriter(folder_ / attention_file, io::JsonLinesWriter::Mode::append);
    attention_.write(record);
  });
}

template <class Write>
void RunFolder::add_record(const Write& write) {
  try {
    write();
    metrics_failed_ = false;
  } catch (const Error& error) {
    if (!metrics_failed_) logging::error("metrics are not being written: {}", error.what());
    metrics_failed_ = true;
  }
}

}  // namespace annulus::training
