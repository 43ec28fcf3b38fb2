#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "prediction/simulator/selected.hpp"

namespace annulus::options {

/// The selections of the first sequence of a tensor dump.
struct RecordedSelection {
  simulator::SelectedBlocks blocks;
  std::int64_t most_columns = 0;  ///< of the one that has the most
};

/// Reads a tensor dump (docs/formats/tensor-dump.md): `text` is the file of annulus-bench, or file:layers.I
/// of annulus-train. Throws Error naming `field`, file and dataset.
RecordedSelection read_selection(const std::string& text, std::string_view field);

}  // namespace annulus::options
