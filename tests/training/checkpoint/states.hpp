#pragma once

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>

#include "support/names_in.hpp"
#include "training/checkpoint/writer.hpp"

namespace annulus::checkpoint::test {

using annulus::test::names_in;

/// A model's tensors with values of every buffer, any bit patterns: denormals, infinities and NaNs too.
struct State {
  std::vector<StoredTensor> tensors{{"embedding", {11, 8}},
                                    {"layers.0.norm", {8}},
                                    {"layers.0.query", {16, 8}},
                                    {"final_norm", {8}},
                                    {"lm_head", {11, 8}}};
  std::array<std::vector<float>, buffer_count> values;

  explicit State(unsigned seed) {
    std::mt19937 random(seed);
    for (auto& buffer : values) {
      buffer.resize(static_cast<std::size_t>(size()));
      for (float& value : buffer) {
        const std::uint32_t bits = random();
        std::memcpy(&value, &bits, sizeof bits);
      }
    }
  }

  std::int64_t size() const {
    std::int64_t size = 0;
    for (const StoredTensor& tensor : tensors) size += tensor.elements();
    return size;
  }
  const std::vector<float>& of(Buffer buffer) const { return values[static_cast<std::size_t>(buffer)]; }
};

inline Progress progress_at(std::int64_t step) {
  return {.step = step,
          .epoch = 3,
          .sequences_read = 17,
          .global_batch_size = 4,
          .skipped_steps = step / 2,
          .skipped_in_a_row = step / 4,
          .data_fingerprint = 0xfedcba98u,
          .config = "[train]\nlr = 1.0  # é\n",
          .sets = {{.name = "büch",
                    .weight = 2,
                    .epoch = 3,
                    .sequences_read = 17,
                    .sequences = 20,
                    .drawn = 77,
                    .shards = 4,
                    .fingerprint = 0xfedcba98u}}};
}

inline std::string bytes_of(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

/// [0, size) in `parts` pieces of about one size.
inline std::vector<Slice> pieces_of(std::int64_t size, int parts) {
  std::vector<Slice> slices;
  for (int part = 0; part < parts; ++part)
    slices.push_back({size * part / parts, size * (part + 1) / parts, size * part / parts});
  return slices;
}

inline Elements elements_of(const State& state) {
  return [&state](Buffer buffer, std::int64_t offset, std::int64_t count) {
    return std::span<const float>(state.of(buffer))
        .subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(count));
  };
}

/// Writes the folder as `parts` ranks do that hold a piece of the model each.
inline void write_checkpoint(const std::filesystem::path& folder, const State& state, std::int64_t step,
                             int parts, std::int64_t block = default_block) {
  std::filesystem::create_directories(folder);
  const std::vector<Slice> slices = pieces_of(state.size(), parts);
  for (int part = 0; part < parts; ++part)
    write_part({.folder = folder, .part = part, .parts = parts, .slices = {slices[std::size_t(part)]}},
               state.tensors, elements_of(state), {}, block);
  write_manifest(folder, progress_at(step), state.tensors, parts, block);
}

/// Elements [begin, end) of the model.
inline std::vector<float> read(const Checkpoint& from, const State& like, Buffer buffer, std::int64_t begin,
                               std::int64_t end) {
  std::vector<float> values;
  std::int64_t at = 0;
  for (const StoredTensor& tensor : like.tensors) {
    const std::int64_t first = std::max(begin, at), last = std::min(end, at + tensor.elements());
    if (first < last)
      from.read(buffer, tensor.name, first - at, last - first,
                [&](std::int64_t, std::span<const float> more) {
                  values.insert(values.end(), more.begin(), more.end());
                });
    at += tensor.elements();
  }
  return values;
}

inline bool holds(const Checkpoint& from, const State& state) {
  return std::ranges::all_of(buffers, [&](Buffer buffer) {
    return bytes_of(read(from, state, buffer, 0, state.size())) == bytes_of(state.of(buffer));
  });
}

inline void put(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

}  // namespace annulus::checkpoint::test
