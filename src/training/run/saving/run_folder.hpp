#pragma once

#include <spdlog/common.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include <annulus/training/run/config.hpp>
#include <annulus/training/run/trainer.hpp>

#include "training/checkpoint/folder.hpp"
#include "training/io/event_file.hpp"
#include "training/io/folder_lock.hpp"
#include "training/io/json_lines.hpp"
#include "training/run/report.hpp"

namespace annulus::training {

/// While it lives, log messages go to train.log of a run folder too.
class RunLog {
 public:
  /// Throws Error naming the file when it cannot be written, or is a link, a pipe or a device.
  explicit RunLog(const std::filesystem::path& folder);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

 private:
  std::shared_ptr<spdlog::sinks::sink> sink_;
};

/// What a run leaves on disk. Rank 0 alone has one, and holds the folder against other runs while it lives.
class RunFolder {
 public:
  /// Makes and locks the folder, finds the checkpoint to go on from, holds the configuration against the one
  /// that the checkpoint was made with, completes it from there and saves it. Throws Error naming path, key
  /// and remedy.
  RunFolder(Config config, const ResumePolicy& resume);

  const std::optional<checkpoint::Checkpoint>& resume_from() const { return resume_from_; }
  /// Passes over the checkpoint, which is damaged as `problem` says: goes on from the newest older one that
  /// is whole. Throws Error where there is none, or the damaged one was asked for.
  void pass_over(const std::string& problem);
  /// The configuration that the checkpoint was made with.
  const std::optional<Config>& before() const { return before_; }
  /// The configuration of the run, its train.schedule_steps known.
  const Config& config() const { return config_; }

  /// Opens metrics.jsonl and drops its records after `step`, which the run is about to write again, and those
  /// of attention.jsonl.
  void start_metrics(std::int64_t step);
  /// Appends a record, also for TensorBoard (run.tensorboard). A full disk, and a folder that is not under
  /// its name any more, are reported once and do not end the run.
  void write_metrics(const nlohmann::json& record);
  /// Appends a record to attention.jsonl, likewise.
  void write_attention(const nlohmann::json& record);

  /// Knows the steps of the records that stay.
  SpikeWatch& spikes() { return spikes_; }

  checkpoint::CheckpointFolder& checkpoints() { return checkpoints_; }

 private:
  /// Calls write(), which adds to a file of records.
  template <class Write>
  void add_record(const Write& write);
  void find_checkpoint();
  void adopt();
  void require_compatible(Continuation continuation) const;

  Config config_;
  const ResumePolicy resume_;
  const std::int64_t schedule_steps_;  // as they were given
  std::filesystem::path folder_;
  io::FolderLock lock_;
  RunLog log_;
  checkpoint::CheckpointFolder checkpoints_;
  std::optional<checkpoint::Checkpoint> resume_from_;
  std::optional<Config> before_;
  io::JsonLinesWriter metrics_, attention_;
  SpikeWatch spikes_;
  std::optional<io::EventFile> events_;
  bool metrics_failed_ = false, moved_ = false;
};

}  // namespace annulus::training
