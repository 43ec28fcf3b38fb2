#pragma once

#include <annulus/attention/kernels/local.hpp>
#include <annulus/base/kokkos/tensor.hpp>

namespace annulus::test {

// What masks point to and nobody reads.
inline constexpr std::int64_t some_number = 0;
inline constexpr std::uint32_t some_bits = 0;

/// Operands of a causal mask whose arrays have no data, of heads of 64 columns.
inline attention::Operands<bfloat16, HostExec> without_data(int batch, int heads, int kv_heads,
                                                            const PositionMap& queries,
                                                            const PositionMap& keys, std::int64_t tokens) {
  const auto array = [&](int of_heads, const PositionMap& rows) {
    return Array4<const bfloat16, HostExec>(static_cast<const bfloat16*>(nullptr), batch, of_heads,
                                            rows.count, 64);
  };
  attention::Operands<bfloat16, HostExec> in{
      array(heads, queries), array(kv_heads, keys), array(kv_heads, keys), queries, keys, {}};
  in.mask.tokens = tokens;
  in.mask.right = 0;
  return in;
}

/// The mask with blocks of each query (`of_queries`) or block lists, of as many heads together.
inline MaskRule with_blocks(MaskRule mask, std::int64_t block, bool of_queries, std::int64_t lists,
                            std::int64_t heads_of_list) {
  mask.block_size = block;
  mask.block_lists = lists;
  mask.heads_of_list = heads_of_list;
  if (of_queries)
    mask.query_blocks = &some_bits;
  else
    mask.block_row_starts = mask.block_columns = &some_number;
  return mask;
}

}  // namespace annulus::test
