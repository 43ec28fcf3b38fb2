#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include <annulus/training/io/hdf5.hpp>

/// Checkpoints: folders from which a run goes on, specified in docs/formats/checkpoint.md.
namespace annulus::checkpoint {

/// What a checkpoint has of every element of a model, in fp32: the master weights and AdamW's moments.
enum class Buffer : std::uint8_t { parameters, first_moment, second_moment };
inline constexpr std::array buffers{Buffer::parameters, Buffer::first_moment, Buffer::second_moment};
inline constexpr std::size_t buffer_count = buffers.size();
/// "parameters", "first_moment", "second_moment": of buffers and of the groups of tensors in files.
std::string_view name_of(Buffer buffer);

/// Where a run stands, beside its tensors.
struct Progress {
  std::int64_t step = 0;               ///< optimizer steps made
  std::int64_t epoch = 0;              ///< of reading, with
  std::int64_t sequences_read = 0;     ///< sequences of this epoch that all ranks together have read
  std::int64_t global_batch_size = 0;  ///< sequences: data-parallel groups · micro-batches
  std::uint32_t data_fingerprint = 0;  ///< of the token stream (data::TokenDataset::fingerprint)
  std::string config;                  ///< the effective configuration, TOML
  /// What decides about the last bits of results, in words, by name ("the kernels of BLAS"); empty where the
  /// program that wrote it did not say.
  std::map<std::string, std::string> computed_with{};

  bool operator==(const Progress&) const = default;
};

/// A tensor of a model.
struct Tensor {
  std::string name;
  io::Extents extents;  ///< outermost dimension first, at least one, none of them 0

  std::int64_t elements() const;
  bool operator==(const Tensor&) const = default;
};

/// Elements [begin, end) of a model, whose tensors lie one behind the other, and where they lie in the flat
/// buffers of a rank.
struct Slice {
  std::int64_t begin = 0, end = 0;
  std::int64_t offset = 0;

  std::int64_t size() const { return end - begin; }
  bool operator==(const Slice&) const = default;
};

/// The end of every message about a checkpoint that is damaged.
inline constexpr const char* bad_checkpoint_advice =
    "remove it, or resume from another one with --resume PATH";

}  // namespace annulus::checkpoint
