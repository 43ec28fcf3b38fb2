#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include <annulus/comm/communicator.hpp>
#include <annulus/io/json_lines.hpp>
#include <annulus/train/checkpoint.hpp>
#include <annulus/train/config.hpp>
#include <annulus/train/trainer.hpp>

#include "train/folder_lock.hpp"

namespace annulus::train {

/// What a run leaves on disk. Rank 0 alone has one, and holds the folder against other runs while it lives.
class RunFolder {
 public:
  /// Makes and locks the folder, finds the checkpoint to go on from, holds the configuration against the one
  /// that the checkpoint was made with, and saves it. Log messages go to train.log too from here on. Throws
  /// Error naming path, key and remedy.
  RunFolder(const Config& config, const ResumePolicy& resume);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::optional<Checkpoint>& resume_from() const { return resume_from_; }

  /// Opens metrics.jsonl and drops the records after `step`, which the run is about to write again.
  void start_metrics(std::int64_t step);
  /// Appends a record. A full disk is reported once and does not end the run.
  void write_metrics(const nlohmann::json& record);

  const CheckpointFolder& checkpoints() const { return checkpoints_; }

 private:
  void find_checkpoint(const ResumePolicy& resume);
  void require_compatible(const Config& config, Continuation continuation) const;
  void start_log();

  std::filesystem::path folder_;
  FolderLock lock_;
  CheckpointFolder checkpoints_;
  std::optional<Checkpoint> resume_from_;
  io::JsonLinesWriter metrics_;
  bool metrics_failed_ = false;
  bool logging_ = false;
};

}  // namespace annulus::train
