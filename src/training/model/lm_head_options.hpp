#pragma once

#include <cstdint>
#include <limits>

#include "training/loss/lm_head.hpp"

namespace annulus::model {

inline loss::LmHeadOptions lm_head_options(std::int64_t rows) {
  if (rows == 0) return {};
  return {.sequence_tile = rows, .workspace_bytes = std::numeric_limits<std::int64_t>::max()};
}

}  // namespace annulus::model
