#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <annulus/data/order.hpp>
#include <annulus/model/parameters.hpp>
#include <annulus/train/flat_buffer.hpp>

/// Checkpoints: HDF5 files from which a run goes on, specified in docs/formats/checkpoint.md.
namespace annulus::train {

inline constexpr const char* checkpoint_format = "annulus-checkpoint";
inline constexpr std::int64_t checkpoint_version = 2;

/// Where a run stands, beside its flat buffers.
struct Progress {
  std::int64_t step = 0;               ///< optimizer steps made
  data::StreamState stream;            ///< sequences read
  std::int64_t global_batch_size = 0;  ///< sequences: data-parallel groups · micro-batches
  std::uint32_t data_fingerprint = 0;  ///< of the token stream (data::TokenDataset::fingerprint)
  std::string config;                  ///< the effective configuration, TOML
};

/// Writes a checkpoint aside, reads it back against its checksums and renames it. Throws Error that names the
/// file (disk full, folder not writable); an older file of that name is then untouched. Goes tensor by
/// tensor: the host holds no second copy of what is on a device.
void save_checkpoint(const std::filesystem::path& file, const model::ParameterMap& map,
                     const Progress& progress, const Buffers& buffers);

/// A file that is whole: its last line, which covers every byte, was right when this was made. The file is
/// read once for that and once to load it.
class Checkpoint {
 public:
  /// Throws Error naming file and remedy when the file is damaged, foreign or of another version.
  explicit Checkpoint(std::filesystem::path file);

  const std::filesystem::path& file() const { return file_; }
  const Progress& progress() const { return progress_; }

  /// Reads what save_checkpoint wrote into `buffers`. Throws Error naming file and dataset when the
  /// parameters are not those of `map`, or a dataset is not what its checksum says.
  void load(const model::ParameterMap& map, const Buffers& buffers) const;

 private:
  std::filesystem::path file_;
  Progress progress_;
};

/// The folder of a run's checkpoints, step-00000100.h5 and so on.
class CheckpointFolder {
 public:
  CheckpointFolder(std::filesystem::path folder, std::int64_t keep);

  std::filesystem::path file_of(std::int64_t step) const;

  /// Removes what a run that was killed while it saved has left. Call it while no other run can save here.
  void remove_leftovers() const;

  /// Saves, then removes older ones so that `keep` stay, this one counted. Throws like save_checkpoint;
  /// nothing is removed then.
  void save(const model::ParameterMap& map, const Progress& progress, const Buffers& buffers) const;

  /// Steps that have a file, ascending.
  std::vector<std::int64_t> steps() const;

  /// The newest file that is whole. Files that are not are reported as warnings in the log and passed over.
  /// Throws Error when there are files but none is good.
  std::optional<Checkpoint> newest_good() const;

 private:
  std::filesystem::path folder_;
  std::int64_t keep_;
};

}  // namespace annulus::train
