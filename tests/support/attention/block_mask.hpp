#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "support/temporary_folder.hpp"

namespace annulus::test {

/// Writes a block list for `tokens` tokens to a file of the folder and gives the mask's term
/// "blocks:SIZE,FILE". listed(row, column) says, row by row, which blocks are in it.
template <class Listed>
std::string block_mask(const TemporaryFolder& folder, const std::string& name, std::int64_t tokens,
                       std::int64_t size, const Listed& listed) {
  const std::int64_t blocks = (tokens + size - 1) / size;
  std::string text = fmt::format("annulus-block-mask 1\nblocks {}\n", blocks);
  for (std::int64_t row = 0; row < blocks; ++row) {
    text += fmt::format("{}:", row);
    for (std::int64_t column = 0; column < blocks; ++column)
      if (listed(row, column)) text += fmt::format(" {}", column);
    text += "\n";
  }
  return fmt::format("blocks:{},{}", size, folder.write(name, text + "end\n"));
}

}  // namespace annulus::test
