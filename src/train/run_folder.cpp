#include "train/run_folder.hpp"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>

#include <annulus/base/error.hpp>
#include <annulus/io/atomic.hpp>

namespace annulus::train {

namespace fs = std::filesystem;

ResumePolicy ResumePolicy::parse(const std::string& text) {
  if (text == "auto") return {};
  if (text == "never") return {Kind::never, {}};
  require(fs::exists(text), "--resume {}: give auto, never or a checkpoint file; there is no such file",
          text);
  return {Kind::file, text};
}

RunFolder::RunFolder(const Config& config, const ResumePolicy& resume)
    : folder_(config.run.folder),
      lock_(folder_),
      checkpoints_(folder_ / "checkpoints", config.checkpoint.keep) {
  checkpoints_.remove_leftovers();
  find_checkpoint(resume);
  if (resume_from_) {
    // A checkpoint in a folder that has none yet begins a run of its own, whose recipe may be another.
    const bool branch = resume.kind == ResumePolicy::Kind::file && checkpoints_.steps().empty();
    require_compatible(config, branch ? Continuation::branch : Continuation::same_run);
  }
  // A folder without checkpoints has no past to be true to: its configuration is replaced.
  io::write_text_atomically(folder_ / "config.toml", config.to_toml());
  start_log();
}

void RunFolder::find_checkpoint(const ResumePolicy& resume) {
  const auto steps = checkpoints_.steps();
  switch (resume.kind) {
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
      resume_from_.emplace(resume.checkpoint);
      const std::int64_t step = resume_from_->progress().step;
      require(steps.empty() || steps.back() <= step,
              "--resume {}: run.folder = '{}' holds later checkpoints (up to step {}), which would be mixed "
              "with those of the new run: choose another run.folder, or remove them",
              resume.checkpoint.string(), folder_.string(), steps.empty() ? 0 : steps.back());
  }
}

void RunFolder::require_compatible(const Config& config, Continuation continuation) const {
  const Config before = Config::parse(resume_from_->progress().config, resume_from_->file().string());
  for (const Difference& d : incompatible(before, config, continuation))
    fail("{} = {} differs from {}, with which {} was made: take the old value, {}", d.key, d.after, d.before,
         resume_from_->file().string(),
         continuation == Continuation::branch
             ? "or start anew without --resume"
             : "start anew in another run.folder, or (keys of attention and train) branch off with --resume "
               "FILE in another run.folder");
}

RunFolder::~RunFolder() {
  if (logging_) spdlog::default_logger()->sinks().pop_back();
}

void RunFolder::start_log() {
  const fs::path file = folder_ / "train.log";
  try {
    const auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(file.string());
    sink->set_pattern("%Y-%m-%d %H:%M:%S %l %v");
    spdlog::default_logger()->sinks().push_back(sink);
    spdlog::default_logger()->flush_on(spdlog::level::info);
    logging_ = true;
  } catch (const spdlog::spdlog_ex& error) {
    fail("{} cannot be written ({}): check the permissions of run.folder", file.string(), error.what());
  }
}

void RunFolder::start_metrics(std::int64_t step) {
  const fs::path file = folder_ / "metrics.jsonl";
  io::filter_json_lines(
      file, [&](const nlohmann::json& record) { return record.value("step", std::int64_t{0}) <= step; });
  metrics_ = io::JsonLinesWriter(file, io::JsonLinesWriter::Mode::append);
}

void RunFolder::write_metrics(const nlohmann::json& record) {
  try {
    metrics_.write(record);
    metrics_failed_ = false;
  } catch (const Error& error) {
    if (!metrics_failed_) spdlog::error("metrics are not being written: {}", error.what());
    metrics_failed_ = true;
  }
}

}  // namespace annulus::train
