#include "distributed/held_slices.hpp"

namespace annulus::distributed {

using plan::local_slot;
using plan::Tensor;
using plan::TensorSlice;

std::optional<TensorSlice>& HeldSlices::held(Tensor tensor, plan::Slot slot) {
  site_.check(slot >= 0, "uses slot {}", slot);
  auto& slots = held_[static_cast<std::size_t>(tensor)];
  const auto index = static_cast<std::size_t>(slot);
  if (slots.size() <= index) slots.resize(index + 1);
  if (slot == local_slot && !slots[index]) slots[index] = site_.plan.problem.local(tensor, site_.rank);
  return slots[index];
}

HeldSlices::Part HeldSlices::part_of(const Block& block) {
  const plan::Problem& problem = site_.plan.problem;
  const std::optional<TensorSlice>& holds = held(block.tensor, block.slot);
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
    part.slice = {block.tensor,
                  holds->owner,
                  {holds->rows.begin + row, holds->rows.begin + row + block.rows},
                  {holds->heads.begin + static_cast<int>(head),
                   holds->heads.begin + static_cast<int>(head + block.heads)}};
  }
  site_.check(fits && block.offset % width == 0 && part.first_batch + part.batches <= problem.batch &&
                  part.slice.rows.end <= holds->rows.end && part.slice.heads.end <= holds->heads.end,
              "uses a block of {} at slot {} that is no slice of {}", plan::name_of(block.tensor), block.slot,
              text(*holds));
  return part;
}

TensorSlice HeldSlices::slice_of(const Block& block) {
  const int batch = site_.plan.problem.batch;
  const Part part = part_of(block);
  site_.check(part.batches == batch, "uses {} of {} batches of {}", part.batches, batch, text(part.slice));
  return part.slice;
}

void HeldSlices::check_landing(const TensorSlice& slice, const Block& block) const {
  const plan::Problem& problem = site_.plan.problem;
  site_.check(block.slot >= 0 && block == block_of(slice, slice, block.slot, problem.batch, problem.head_dim),
              "lands {} in a block of {} at slot {} of another shape", text(slice),
              plan::name_of(block.tensor), block.slot);
  const auto& slots = capacity_.slots[static_cast<std::size_t>(slice.tensor)];
  const auto slot = static_cast<std::size_t>(block.slot);
  site_.check(slot < slots.size() && block.elements() <= slots[slot],
              "lands {} in slot {}, which is too small", text(slice), block.slot);
}

}  // namespace annulus::distributed
