#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include <annulus/plan/plan.hpp>

#include "distributed/slots.hpp"

namespace annulus::distributed {

/// What the slots of a rank hold while a program is read back, and which slice a block is. All throw Error
/// through the site, which moves on with the steps.
class HeldSlices {
 public:
  /// Both outlive this.
  HeldSlices(const Site& site, const Capacity& capacity) : site_(site), capacity_(capacity) {}

  /// A slice of some of the batch.
  struct Part {
    plan::TensorSlice slice;
    std::int64_t first_batch = 0, batches = 0;
  };

  /// What a slot holds; the local slot always holds the rank's shard.
  std::optional<plan::TensorSlice>& held(plan::Tensor tensor, plan::Slot slot);
  /// What of that a block is: the inverse of block_of.
  Part part_of(const Block& block);
  /// The same of a block of the whole batch.
  plan::TensorSlice slice_of(const Block& block);
  /// The block is the compact array of the slice at the beginning of its slot, which is large enough.
  void check_landing(const plan::TensorSlice& slice, const Block& block) const;

 private:
  const Site& site_;
  const Capacity& capacity_;
  std::array<std::vector<std::optional<plan::TensorSlice>>, plan::tensor_count> held_;
};

}  // namespace annulus::distributed
