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
    : folder_(config.run.folder), checkpoints_(folder_ / "checkpoints", config.checkpoint.keep) {
  std::error_code error;
  fs::create_directories(folder_, error);
  require(!error, "run.folder = '{}' cannot be made ({}): check its permissions or choose another",
          folder_.string(), error.message());

  const fs::path saved = folder_ / "config.toml";
  const bool has_checkpoints = !checkpoints_.steps().empty();
  require(
      resume.kind != ResumePolicy::Kind::never || !has_checkpoints,
      "run.folder = '{}' already holds a run: choose another folder, or drop --resume never to go on with it",
      folder_.string());
  if (resume.kind == ResumePolicy::Kind::file) resume_from_ = resume.checkpoint;
  if (resume.kind == ResumePolicy::Kind::automatic) resume_from_ = checkpoints_.newest_good();
  // A folder without checkpoints has no past to be true to: its configuration is replaced.
  if (resume_from_ && fs::exists(saved)) {
    for (const Difference& d : incompatible(Config::load(saved), config))
      fail(
          "{} = {} differs from {} in {}, with which this run was started: take the old value, or start anew "
          "in another run.folder",
          d.key, d.after, d.before, saved.string());
  }
  io::write_text_atomically(saved, config.to_toml());
  start_log();
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
