#include "row_reader.hpp"

#include <algorithm>
#include <vector>

#include <annulus/base/error.hpp>

#include "training/data/dataset.hpp"

namespace annulus::data {

namespace {

/// Rows whose tokens lie in `count` blocks of `block` tokens, the first at token `start` of the shard.
struct BlockRun {
  std::int64_t start = 0, stride = 0, count = 0, block = 0;
  std::int64_t rows() const { return count * block; }
  std::int64_t end() const { return start + (count - 1) * stride + block; }
};

void read_run(const TokenShard& shard, const BlockRun& run, std::int32_t* tokens, std::int32_t* targets) {
  if (run.rows() == 0) return;
  if (run.end() == shard.header().tokens && run.count > 1) {  // nothing stands behind the last block
    BlockRun front = run;
    --front.count;
    read_run(shard, front, tokens, targets);
    const BlockRun last{run.start + front.count * run.stride, run.block, 1, run.block};
    read_run(shard, last, tokens + front.rows(), targets + front.rows());
    return;
  }
  // With the token behind each block, every target but a possible last one of the shard is at hand.
  const bool closed = run.end() == shard.header().tokens;
  const std::int64_t width = run.block + (closed ? 0 : 1);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(run.count * width));
  shard.read_blocks(run.start, run.stride, run.count, width, ids);
  std::vector<std::uint8_t> counts;
  if (shard.header().loss_mask_checksum) {
    counts.resize(ids.size());
    shard.read_loss_mask(run.start, run.stride, run.count, width, counts);
  }
  for (std::int64_t b = 0; b < run.count; ++b) {
    const std::span<const std::int32_t> block(ids.data() + b * width, static_cast<std::size_t>(width));
    shard.require_ids(run.start + b * run.stride, block);
    std::copy_n(block.begin(), run.block, tokens + b * run.block);
    std::int32_t* target = targets + b * run.block;
    std::copy_n(block.begin() + 1, width - 1, target);
    if (closed) target[run.block - 1] = ignored_target;
    if (counts.empty()) continue;
    const std::uint8_t* const next_counts = counts.data() + b * width + 1;
    for (std::int64_t i = 0; i < width - 1; ++i)
      if (next_counts[i] == 0) target[i] = ignored_target;
  }
}

}  // namespace

void read_rows(const TokenShard& shard, std::int64_t origin, const PositionMap& rows,
               std::span<std::int32_t> tokens, std::span<std::int32_t> targets) {
  ANNULUS_ASSERT(tokens.size() == static_cast<std::size_t>(rows.count) && targets.size() == tokens.size());
  std::int64_t row = 0;
  const auto read = [&](BlockRun run) {
    read_run(shard, run, tokens.data() + row, targets.data() + row);
    row += run.rows();
  };
  const auto start = [&] { return origin + rows(row); };
  const bool spread = rows.lo != 1 && rows.block > 1;  // rows of a block do not stand side by side
  while (rows.runs != nullptr && row < rows.count) {
    const std::int64_t side_by_side = rows.end_of_run(row) - row;
    read({start(), side_by_side, 1, side_by_side});
  }
  while (row < rows.count) {
    const std::int64_t inside = (rows.first + row) % rows.block;
    const std::int64_t left = rows.count - row;
    const std::int64_t partial = std::min(left, rows.block - inside);
    if (spread) {
      read({start(), rows.lo, partial, 1});
    } else if (inside != 0 || left < rows.block) {
      read({start(), partial, 1, partial});
    } else if (rows.hi == rows.block) {  // the blocks touch
      read({start(), left, 1, left});
    } else {
      read({start(), rows.hi, left / rows.block, rows.block});
    }
  }
}

}  // namespace annulus::data
