#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "training/io/safetensors/safetensors.hpp"
#include "training/model/parameters.hpp"
#include "training/weights/families.hpp"

namespace annulus::weights {

/// A tensor of a folder: parameters that are neighbours in the flat buffer.
struct HfTensor {
  std::string name;
  std::int64_t begin = 0, rows = 0, columns = 0;  // rows = 1: a vector
  std::int64_t size() const { return rows * columns; }
  io::Extents extents() const {
    const auto r = static_cast<std::uint64_t>(rows), c = static_cast<std::uint64_t>(columns);
    return rows == 1 ? io::Extents{c} : io::Extents{r, c};
  }
};
/// What transformers calls the parameters, in the order of the flat buffer, which they cover without gaps.
std::vector<HfTensor> hf_tensors(const model::ParameterMap& map, const Family& family);

}  // namespace annulus::weights
