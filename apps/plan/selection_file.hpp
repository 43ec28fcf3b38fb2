#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <annulus/simulate/selected.hpp>

namespace annulus::planner {

/// The block diagonals of the first sequence of a tensor dump (docs/formats/tensor-dump.md): `text` is the
/// file of annulus-bench, or file:layers.I of annulus-train. Throws Error naming `field`, file and dataset.
simulate::SelectedBlocks read_selection(const std::string& text, std::string_view field);

/// Of the same selections how many columns the one has that has the most. Throws Error likewise.
std::int64_t read_most_columns(const std::string& text, std::string_view field);

}  // namespace annulus::planner
