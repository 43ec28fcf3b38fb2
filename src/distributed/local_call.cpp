#include "distributed/local_call.hpp"

#include <algorithm>

#include <annulus/base/division.hpp>

namespace annulus::distributed {

namespace {

// Rows of queries that a thread takes at a time, in every kernel of the host.
constexpr std::int64_t tile_rows = 64;

// Batches [b, b + batches) and heads [h, h + heads) of a block, as far as it has them.
void narrow(Block& block, std::int64_t b, std::int64_t batches, std::int64_t h, std::int64_t heads) {
  block.offset += b * block.batch_stride + h * block.head_stride;
  block.batch = std::min(batches, block.batch - b);
  block.heads = std::min(heads, block.heads - h);
}

// The part of `call` in these sequences and kv heads.
LocalCall narrowed(const LocalCall& call, std::int64_t b, std::int64_t batches, std::int64_t h,
                   std::int64_t heads) {
  const std::int64_t group = call.q.heads / call.k.heads;
  LocalCall part = call;
  for (Block* block : {&part.q, &part.o, &part.lse, &part.d, &part.d_o, &part.dq})
    narrow(*block, b, batches, h * group, heads * group);
  for (Block* block : {&part.k, &part.v, &part.dk, &part.dv}) narrow(*block, b, batches, h, heads);
  part.first_batch += b;
  part.first_head += h * group;
  return part;
}

}  // namespace

std::vector<LocalCall> parts_of(const LocalCall& call, const Cutting& cutting) {
  if (cutting.least_pairs <= 0) return {call};
  const std::int64_t group = call.q.heads / call.k.heads;
  const std::int64_t unit_pairs = group * call.q.rows * call.k.rows;
  const std::int64_t unit_tiles = group * ceil_divide(call.q.rows, tile_rows);
  const std::int64_t units = std::max(ceil_divide(cutting.least_pairs, unit_pairs),
                                      ceil_divide(std::int64_t{2} * cutting.threads, unit_tiles));
  const std::int64_t heads = std::min(units, call.k.heads);  // kv heads of a part
  const std::int64_t batches = units <= call.k.heads ? 1 : ceil_divide(units, call.k.heads);
  std::vector<LocalCall> parts;
  for (std::int64_t b = 0; b < call.q.batch; b += batches) {
    for (std::int64_t h = 0; h < call.k.heads; h += heads)
      parts.push_back(narrowed(call, b, batches, h, heads));
  }
  return parts;
}

LocalCall sequence_of(const LocalCall& call, std::int64_t batch) {
  return narrowed(call, batch, 1, 0, call.k.heads);
}

}  // namespace annulus::distributed
