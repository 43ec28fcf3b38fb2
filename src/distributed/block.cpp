#include "distributed/block.hpp"

namespace annulus::distributed {

using plan::Slot;
using plan::Tensor;
using plan::TensorSlice;

bool Block::contiguous() const {
  if (elements() == 0) return true;
  const bool heads_follow = heads == 1 || head_stride == run();
  const bool batches_follow = batch == 1 || batch_stride == heads * run();
  return heads_follow && batches_follow;
}

Block block_of(const TensorSlice& held, const TensorSlice& part, Slot slot, int batch, int head_dim) {
  Block block;
  block.tensor = part.tensor;
  block.slot = slot;
  block.batch = batch;
  block.heads = part.heads.size();
  block.rows = part.rows.size();
  block.width = plan::is_row_statistic(part.tensor) ? 1 : head_dim;
  block.head_stride = held.rows.size() * block.width;
  block.batch_stride = held.heads.size() * block.head_stride;
  block.offset = (part.heads.begin - held.heads.begin) * block.head_stride +
                 (part.rows.begin - held.rows.begin) * block.width;
  return block;
}

DType storage(Tensor tensor, DType activation) {
  const bool input =
      tensor == Tensor::q || tensor == Tensor::k || tensor == Tensor::v || tensor == Tensor::d_o;
  return input ? activation : DType::f32;
}

}  // namespace annulus::distributed
