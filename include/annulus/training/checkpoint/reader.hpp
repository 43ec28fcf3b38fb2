#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Checkpoints: folders from which a run goes on, specified in docs/formats/checkpoint.md.
namespace annulus::checkpoint {

struct Manifest;

/// What a checkpoint has of every element of a model, in fp32: the master weights and AdamW's moments.
enum class Buffer : std::uint8_t { parameters, first_moment, second_moment };
inline constexpr std::array buffers{Buffer::parameters, Buffer::first_moment, Buffer::second_moment};
inline constexpr std::size_t buffer_count = buffers.size();
/// "parameters", "first_moment", "second_moment": of buffers and of the groups of tensors in files.
std::string_view name_of(Buffer buffer);

/// How far a set of the data has been read.
struct SetProgress {
  std::string name;                 ///< in data.sets; empty: data.shards
  std::int64_t weight = 1;          ///< in millionths
  std::int64_t epoch = 0;           ///< of reading, with
  std::int64_t sequences_read = 0;  ///< sequences of this epoch that all ranks together have read
  std::int64_t sequences = 0;       ///< of this epoch, all of them; 0: as many as the set has
  std::int64_t drawn = 0;           ///< sequences that were read since the weights are what they are
  std::int64_t shards = 0;          ///< of the set, and their
  std::uint32_t fingerprint = 0;    ///< data::TokenDataset::fingerprint

  bool operator==(const SetProgress&) const = default;
};

/// Where a run stands, beside its tensors.
struct Progress {
  std::int64_t step = 0;               ///< optimizer steps made
  std::int64_t epoch = 0;              ///< of reading; of the set with the least, with
  std::int64_t sequences_read = 0;     ///< sequences of this epoch that all ranks together have read
  std::int64_t global_batch_size = 0;  ///< sequences: data-parallel groups · micro-batches
  std::int64_t skipped_steps = 0;      ///< optimizer steps that were not finite and changed nothing
  std::int64_t skipped_in_a_row = 0;   ///< skipped steps since the last one that was not skipped
  std::uint32_t data_fingerprint = 0;  ///< of the token stream (data::TokenDataset::fingerprint)
  std::string config;                  ///< the effective configuration, TOML
  /// What decides about the last bits of results, in words, by name ("the kernels of BLAS"); empty where the
  /// program that wrote it did not say.
  std::map<std::string, std::string> computed_with{};
  /// Progress of each set; empty where the program that wrote it knew one set alone.
  std::vector<SetProgress> sets{};

  bool operator==(const Progress&) const = default;
};

/// A tensor of a model.
struct StoredTensor {
  std::string name;
  std::vector<std::uint64_t> extents;  ///< outermost dimension first, at least one, none of them 0

  std::int64_t elements() const;
  bool operator==(const StoredTensor&) const = default;
};

/// A checkpoint opened for reading. Several threads may read at once.
class Checkpoint {
 public:
  /// How much is looked at when it is opened.
  enum class Check : std::uint8_t {
    whole,    ///< that all parts are there and have their sizes
    manifest  ///< the manifest alone
  };

  /// Throws Error naming file and remedy when it is damaged, foreign or of another version.
  explicit Checkpoint(std::filesystem::path path, Check check = Check::whole);
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const std::filesystem::path& path() const;
  /// What the manifest says, for the library alone (training/checkpoint/manifest.hpp).
  const Manifest& manifest() const;
  const Progress& progress() const;
  /// "annulus 0.2.0 0123456789ab": the program that wrote it.
  const std::string& creator() const;
  /// Tensors of each buffer, f32, in the order in which the model has them.
  const std::vector<StoredTensor>& tensors() const;
  /// Files that hold the tensors: one of each rank that wrote it.
  std::int64_t parts() const;
  /// Bytes of these files.
  std::uint64_t bytes() const;

  /// Throws Error naming the tensor unless the checkpoint has just these, in any order.
  void require_tensors(std::span<const StoredTensor> tensors) const;

  /// Calls use(at, values) with elements [first, first + count) of a tensor in one buffer, piece by piece and
  /// in order; `at` counts from 0 to count. Reads nothing but the blocks that they lie in, and hands no
  /// element out before its block has been compared with its checksum. Throws Error naming file and tensor
  /// when they differ, when there is no such tensor and when the part is missing or not what the manifest
  /// says.
  using Use = std::function<void(std::int64_t at, std::span<const float> values)>;
  void read(Buffer buffer, const std::string& tensor, std::int64_t first, std::int64_t count,
            const Use& use) const;

  /// Reads everything and compares it with its checksums: throws Error at the first damage. `seen` gets the
  /// bytes read so far.
  void verify(const std::function<void(std::uint64_t)>& seen = {}) const;

 private:
  class Folder;
  std::unique_ptr<Folder> folder_;
};

/// The newest checkpoint in a folder of a run's checkpoints that is whole as far as its parts are there.
/// Others are reported as warnings in the log and passed over. Throws Error when there are some but none is
/// good, and when there are those of an older version alone.
std::optional<Checkpoint> newest_good(const std::filesystem::path& folder);

}  // namespace annulus::checkpoint
