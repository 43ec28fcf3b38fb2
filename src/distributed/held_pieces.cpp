#include "distributed/held_pieces.hpp"

namespace annulus::distributed {

using plan::home;
using plan::Piece;
using plan::Tensor;

std::optional<Piece>& HeldPieces::held(Tensor tensor, plan::Slot slot) {
  site_.check(slot >= 0, "uses slot {}", slot);
  auto& slots = held_[static_cast<std::size_t>(tensor)];
  const auto index = static_cast<std::size_t>(slot);
  if (slots.size() <= index) slots.resize(index + 1);
  if (slot == home && !slots[index]) slots[index] = site_.plan.problem.whole(tensor, site_.rank);
  return slots[index];
}

HeldPieces::Part HeldPieces::part_of(const Block& block) {
  const plan::Problem& problem = site_.plan.problem;
  const std::optional<Piece>& holds = held(block.tensor, block.slot);
  site_.check(holds.has_value(), "uses {} at slot {}, which holds nothing", plan::name_of(block.tensor),
              block.slot);
  const std::int64_t width = plan::is_row_statistic(block.tensor) ? 1 : problem.head_dim;
  const std::int64_t head_stride = holds->rows.size() * width,
                     batch_stride = holds->heads.size() * head_stride;
  const bool fits = batch_stride > 0 && block.width == width && block.head_stride == head_stride &&
                    block.batch_stride == batch_stride && block.offset >= 0 && block.batch >= 0 &&
                    block.heads >= 0 && block.rows >= 0;
  Part part;
  if (fits) {
    part.first_batch = block.offset / batch_stride;
    part.batches = block.batch;
    const std::int64_t head = block.offset % batch_stride / head_stride,
                       row = block.offset % head_stride / width;
    part.piece = {block.tensor,
                  holds->owner,
                  {holds->rows.begin + row, holds->rows.begin + row + block.rows},
                  {holds->heads.begin + static_cast<int>(head),
                   holds->heads.begin + static_cast<int>(head + block.heads)}};
  }
  site_.check(fits && block.offset % width == 0 && part.first_batch + part.batches <= problem.batch &&
                  part.piece.rows.end <= holds->rows.end && part.piece.heads.end <= holds->heads.end,
              "uses a block of {} at slot {} that is no piece of {}", plan::name_of(block.tensor), block.slot,
              text(*holds));
  return part;
}

Piece HeldPieces::piece_of(const Block& block) {
  const int batch = site_.plan.problem.batch;
  const Part part = part_of(block);
  site_.check(part.batches == batch, "uses {} of {} batches of {}", part.batches, batch, text(part.piece));
  return part.piece;
}

void HeldPieces::check_landing(const Piece& piece, const Block& block) const {
  const plan::Problem& problem = site_.plan.problem;
  site_.check(block.slot >= 0 && block == block_of(piece, piece, block.slot, problem.batch, problem.head_dim),
              "lands {} in a block of {} at slot {} of another shape", text(piece),
              plan::name_of(block.tensor), block.slot);
  const auto& slots = capacity_.slots[static_cast<std::size_t>(piece.tensor)];
  const auto slot = static_cast<std::size_t>(block.slot);
  site_.check(slot < slots.size() && block.elements() <= slots[slot],
              "lands {} in slot {}, which is too small", text(piece), block.slot);
}

}  // namespace annulus::distributed
