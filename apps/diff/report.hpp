#pragma once

#include <string>
#include <vector>

#include "compare.hpp"

namespace annulus::diff {

/// The first tensor that differs, where and by how much, and how many more; or that none does.
std::string verdict(const std::vector<TensorDifference>& differences);

/// One line a tensor.
std::string table(const std::vector<TensorDifference>& differences);

}  // namespace annulus::diff
