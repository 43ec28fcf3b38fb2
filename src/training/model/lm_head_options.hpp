#pragma once

#include <cstdint>
#include <limits>

#include "training/loss/lm_head.hpp"

namespace annulus::model {

inline loss::LmHeadOptions lm_head_options(std::int64_t rows, float soft_cap = 0) {
  if (rows == 0) return {.soft_cap = soft_cap};
  return {.sequence_tile = rows,
          .workspace_bytes = std::numeric_limits<std::int64_t>::max(),
          .soft_cap = soft_cap};
}

}  // namespace annulus::model
