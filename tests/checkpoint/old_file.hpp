#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <span>

#include <annulus/io/crc32.hpp>
#include <annulus/io/hdf5_writer.hpp>

#include "checkpoint/seal.hpp"
#include "checkpoint/states.hpp"

namespace annulus::checkpoint::test {

/// The groups of a file of version 2, without its last line.
template <class StateLike>
void write_tensors(io::FileWriter& file, const StateLike& state) {
  for (const Buffer buffer : buffers) {
    io::GroupWriter group = file.create_group(std::string(name_of(buffer)));
    std::size_t at = 0;
    for (const Tensor& tensor : state.tensors) {
      const auto values = std::span<const float>(state.values[static_cast<std::size_t>(buffer)])
                              .subspan(at, static_cast<std::size_t>(tensor.elements()));
      io::DatasetWriter dataset = group.create_dataset(tensor.name, DType::f32, tensor.extents);
      dataset.write(values);
      dataset.set_attribute("crc32", io::crc32_of(values));
      at += values.size();
    }
  }
}

/// Writes the file as the program did that had version 2. `version` 1 has no global_batch_size.
template <class StateLike>
void write_old_file(const std::filesystem::path& path, const StateLike& state, const Progress& progress,
                    std::int64_t version = 2) {
  io::write_hdf5_atomically(path, [&](io::FileWriter& file) {
    file.set_attribute("format", "annulus-checkpoint");
    file.set_attribute("version", version);
    file.set_attribute("creator", "annulus of before");
    file.set_attribute("step", progress.step);
    file.set_attribute("epoch", progress.epoch);
    file.set_attribute("sequences_read", progress.sequences_read);
    if (version > 1) file.set_attribute("global_batch_size", progress.global_batch_size);
    file.set_attribute("update_sequences", progress.global_batch_size);
    file.set_attribute("data_fingerprint", progress.data_fingerprint);
    file.set_attribute("config", progress.config);
    write_tensors(file, state);
  });
  seal_checkpoint(path);
}
inline void write_old_file(const std::filesystem::path& path, const State& state, std::int64_t step) {
  write_old_file(path, state, progress_at(step));
}

}  // namespace annulus::checkpoint::test
