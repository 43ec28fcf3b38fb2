#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "training/io/hdf5_files/hdf5_writer.hpp"

namespace annulus::test {

/// A selection of `vertical-slash`, by list: block distances, and positions of columns.
struct RecordedSlashes {
  std::uint64_t tokens = 0;
  std::vector<std::vector<std::int64_t>> distances, columns;
};

/// Writes the datasets of a tensor dump (docs/formats/tensor-dump.md); those of annulus-train have `prefix`
/// "layers.I.".
inline void write_selection(const std::string& file, const RecordedSlashes& selection,
                            const std::string& prefix = "") {
  constexpr std::int64_t block = 64;
  const std::uint64_t tokens = selection.tokens, lists = selection.distances.size();
  std::vector<std::uint8_t> slashes(lists * tokens), columns(lists * tokens);
  for (std::uint64_t list = 0; list < lists; ++list) {
    for (const std::int64_t distance : selection.distances[list])
      for (std::int64_t token = 0; token < block; ++token)
        slashes[list * tokens + std::uint64_t(distance * block + token)] = 1;
    for (const std::int64_t column : selection.columns[list])
      columns[list * tokens + std::uint64_t(column)] = 1;
  }
  io::FileWriter dump = io::FileWriter::create(file);
  dump.write(prefix + "selected_slashes", std::span<const std::uint8_t>(slashes), {1, lists, tokens});
  dump.write(prefix + "selected_columns", std::span<const std::uint8_t>(columns), {1, lists, tokens});
  dump.close();
}

}  // namespace annulus::test
