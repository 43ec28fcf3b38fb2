#include "attention/executor/blocks/block.hpp"

#include <algorithm>

namespace annulus::executor {

using plan::Slot;
using plan::Tensor;
using plan::TensorSlice;

bool StridedBlock::contiguous() const {
  if (elements() == 0) return true;
  const bool heads_follow = heads == 1 || head_stride == run();
  const bool batches_follow = batch == 1 || batch_stride == heads * run();
  return heads_follow && batches_follow;
}

StridedBlock block_of(const TensorSlice& held, const TensorSlice& part, Slot slot,
                      const plan::Problem& problem) {
  StridedBlock block;
  block.tensor = part.tensor;
  block.slot = slot;
  block.batch = problem.batch;
  block.heads = part.heads.size();
  block.rows = part.rows.size();
  block.width = problem.columns(part.tensor);
  block.head_stride = held.rows.size() * block.width;
  block.batch_stride = held.heads.size() * block.head_stride;
  block.offset = (part.heads.begin - held.heads.begin) * block.head_stride +
                 (part.rows.begin - held.rows.begin) * block.width;
  return block;
}

StridedBlock of_rows(StridedBlock block, Tensor statistic) {
  block.tensor = statistic;
  for (std::int64_t* const elements : {&block.offset, &block.batch_stride, &block.head_stride})
    *elements /= block.width;
  block.width = 1;
  return block;
}

DType storage(Tensor tensor, DType dtype) {
  const bool input =
      tensor == Tensor::q || tensor == Tensor::k || tensor == Tensor::v || tensor == Tensor::d_o;
  return input ? dtype : DType::f32;
}

namespace {

bool same_array(const StridedBlock& a, const StridedBlock& b) {
  return a.tensor == b.tensor && a.slot == b.slot && a.width == b.width && a.head_stride == b.head_stride &&
         a.batch_stride == b.batch_stride && a.head_stride > 0;
}

StridedBlock cut(const StridedBlock& whole, const Box& box) {
  StridedBlock block = whole;
  block.offset = box.batch * whole.batch_stride + box.head * whole.head_stride + box.row * whole.width;
  block.batch = box.batch_end - box.batch;
  block.heads = box.head_end - box.head;
  block.rows = box.row_end - box.row;
  return block;
}

}  // namespace

Box::Box(const StridedBlock& b)
    : batch(b.offset / b.batch_stride),
      batch_end(batch + b.batch),
      head(b.offset % b.batch_stride / b.head_stride),
      head_end(head + b.heads),
      row(b.offset % b.head_stride / b.width),
      row_end(row + b.rows) {}

bool contains(const StridedBlock& whole, const StridedBlock& part) {
  if (!same_array(whole, part) || part.elements() == 0) return false;
  const Box a(whole), b(part);
  return a.batch <= b.batch && b.batch_end <= a.batch_end && a.head <= b.head && b.head_end <= a.head_end &&
         a.row <= b.row && b.row_end <= a.row_end;
}

bool overlap(const StridedBlock& a, const StridedBlock& b) {
  if (a.tensor != b.tensor || a.slot != b.slot) return false;
  if (!same_array(a, b)) return true;
  const Box x(a), y(b);
  return x.batch < y.batch_end && y.batch < x.batch_end && x.head < y.head_end && y.head < x.head_end &&
         x.row < y.row_end && y.row < x.row_end;
}

std::vector<StridedBlock> without(const StridedBlock& whole, const StridedBlock& part) {
  if (!overlap(whole, part)) return {whole};
  Box rest(whole);
  const Box p(part);
  std::vector<StridedBlock> blocks;
  // Cuts off what lies before and behind the part, one dimension after the other.
  const auto cut_off = [&](std::int64_t Box::*begin, std::int64_t Box::*end) {
    Box before = rest, behind = rest;
    before.*end = rest.*begin = std::max(rest.*begin, p.*begin);
    behind.*begin = rest.*end = std::min(rest.*end, p.*end);
    for (const Box& box : {before, behind})
      if (const StridedBlock block = cut(whole, box); block.elements() > 0) blocks.push_back(block);
  };
  cut_off(&Box::batch, &Box::batch_end);
  cut_off(&Box::head, &Box::head_end);
  cut_off(&Box::row, &Box::row_end);
  return blocks;
}

std::vector<StridedBlock> without(const std::vector<StridedBlock>& blocks, const StridedBlock& part) {
  std::vector<StridedBlock> rest;
  for (const StridedBlock& block : blocks) std::ranges::copy(without(block, part), std::back_inserter(rest));
  return rest;
}

}  // namespace annulus::executor
