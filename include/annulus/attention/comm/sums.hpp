#pragma once

#include <cstdint>
#include <string_view>

namespace annulus::comm {

/// In which order a reduction combines.
enum class Sums : std::uint8_t {
  rank_order,  ///< neighbours first, (x0 + x1) + (x2 + x3): the same bits whatever the transport and the
               ///< nodes
  native       ///< as the transport's own reductions do; each element still has the same bits on every rank
};

/// "rank-order" or "native". Throws Error naming `field` when `name` is neither.
Sums parse_sums(std::string_view name, std::string_view field = "sums");

}  // namespace annulus::comm
