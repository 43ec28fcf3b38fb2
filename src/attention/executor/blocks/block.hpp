#pragma once

#include <cstdint>
#include <vector>

#include <annulus/attention/plan/plan.hpp>

namespace annulus::executor {

/// The elements of a slice inside the compact array that a slot holds: (batch, heads, run), where a run is
/// the slice's rows of one head, contiguous in memory.
struct StridedBlock {
  plan::Tensor tensor = plan::Tensor::q;
  plan::Slot slot = plan::local_slot;
  std::int64_t offset = 0;  ///< elements before the first one
  std::int64_t batch = 0, heads = 0, rows = 0;
  std::int64_t width = 1;  ///< elements of a row (Problem::columns)
  std::int64_t batch_stride = 0, head_stride = 0;

  std::int64_t run() const { return rows * width; }
  std::int64_t elements() const { return batch * heads * run(); }
  /// The elements follow one another without gaps.
  bool contiguous() const;
  friend bool operator==(const StridedBlock&, const StridedBlock&) = default;
};

/// The part `part` of the array of `held` that lies in `slot`.
StridedBlock block_of(const plan::TensorSlice& held, const plan::TensorSlice& part, plan::Slot slot,
                      const plan::Problem& problem);

/// A row statistic of the rows of `block`, in the array that lies in the same slot.
StridedBlock of_rows(StridedBlock block, plan::Tensor statistic);

/// Type in which a tensor lies in memory: q, k, v, d_o like the problem's activations, everything else fp32.
DType storage(plan::Tensor tensor, DType dtype);

/// Where a block lies in its array.
struct Box {
  std::int64_t batch, batch_end, head, head_end, row, row_end;
  explicit Box(const StridedBlock& block);
};

/// Whether all of `part` lies in `whole`.
bool contains(const StridedBlock& whole, const StridedBlock& part);

/// Whether the blocks have elements in common. Errs only towards true.
bool overlap(const StridedBlock& a, const StridedBlock& b);

/// What lies in `whole` and not in `part`, in at most six blocks. The two are parts of one array, or of
/// arrays that do not overlap.
std::vector<StridedBlock> without(const StridedBlock& whole, const StridedBlock& part);
/// What lies in several blocks and not in `part`.
std::vector<StridedBlock> without(const std::vector<StridedBlock>& blocks, const StridedBlock& part);

}  // namespace annulus::executor
