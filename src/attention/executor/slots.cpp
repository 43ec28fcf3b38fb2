#include "attention/executor/slots.hpp"

#include <algorithm>

namespace annulus::executor {

using plan::local_slot;
using plan::Pass;
using plan::Slot;
using plan::Tensor;
using plan::TensorSlice;

void Capacity::cover(const Capacity& other) {
  for (std::size_t t = 0; t < slots.size(); ++t) {
    slots[t].resize(std::max(slots[t].size(), other.slots[t].size()));
    for (std::size_t s = 0; s < other.slots[t].size(); ++s)
      slots[t][s] = std::max(slots[t][s], other.slots[t][s]);
  }
  staging.resize(std::max(staging.size(), other.staging.size()));
  for (std::size_t i = 0; i < other.staging.size(); ++i) staging[i] = std::max(staging[i], other.staging[i]);
}

namespace {

// Tensors that a pass sums up in local buffers; the other local buffers belong to the caller and are only
// read.
bool is_result(Pass pass, Tensor tensor) {
  return pass == Pass::forward ? tensor == Tensor::o || tensor == Tensor::lse : plan::is_gradient(tensor);
}

// The element of that index, which is made when it is not there.
template <class T>
T& at(std::vector<T>& all, Slot slot) {
  const auto i = static_cast<std::size_t>(slot);
  if (all.size() <= i) all.resize(i + 1);
  return all[i];
}

}  // namespace

std::optional<TensorSlice>& SlotContents::held(Tensor tensor, Slot slot) {
  site_.check(slot >= 0, "uses slot {}", slot);
  auto& held = at(held_[static_cast<std::size_t>(tensor)], slot);
  if (slot == local_slot && !held) held = site_.plan.problem.local(tensor, site_.rank);
  return held;
}

void Slots::check_slice(const TensorSlice& slice) const {
  const plan::Problem& problem = site_.plan.problem;
  site_.check(slice.owner >= 0 && slice.owner < problem.ranks(), "names {}, but there are {} ranks",
              text(slice), problem.ranks());
  const TensorSlice whole = problem.whole(slice.tensor, slice.owner);
  site_.check(slice.rows.begin >= 0 && slice.rows.begin <= slice.rows.end &&
                  slice.rows.end <= whole.rows.end && slice.heads.begin >= 0 &&
                  slice.heads.begin <= slice.heads.end && slice.heads.end <= whole.heads.end,
              "names {}, but that shard has {} rows and {} heads", text(slice), whole.rows.end,
              whole.heads.end);
}

StridedBlock Slots::landing(const TensorSlice& slice, Slot slot) {
  check_slice(slice);
  site_.check(slot >= 0, "uses slot {}", slot);
  const plan::Problem& problem = site_.plan.problem;
  const StridedBlock block = block_of(slice, slice, slot, problem);
  auto& size = at(capacity_.slots[static_cast<std::size_t>(slice.tensor)], slot);
  size = std::max(size, block.elements());
  return block;
}

StridedBlock Slots::hold(const TensorSlice& slice, Slot slot) {
  const StridedBlock block = landing(slice, slot);
  contents_.held(slice.tensor, slot) = slice;
  return block;
}

StridedBlock Slots::find(const TensorSlice& slice, Slot slot, const char* verb) {
  check_slice(slice);
  const plan::Problem& problem = site_.plan.problem;
  const std::optional<TensorSlice>& held = contents_.held(slice.tensor, slot);
  site_.check(held.has_value(), "{} {} at slot {}, which holds nothing", verb, text(slice), slot);
  site_.check(held->owner == slice.owner && held->rows.begin <= slice.rows.begin &&
                  slice.rows.end <= held->rows.end && held->heads.begin <= slice.heads.begin &&
                  slice.heads.end <= held->heads.end,
              "{} {} at slot {}, which holds {}", verb, text(slice), slot, text(*held));
  return block_of(*held, slice, slot, problem);
}

StridedBlock Slots::find_result(const TensorSlice& slice, Slot slot, const char* verb) {
  site_.check(slot != local_slot || is_result(site_.plan.pass, slice.tensor), "{} the caller's {}", verb,
              text(slice));
  return find(slice, slot, verb);
}

int Slots::take_staging(std::size_t bytes, int wait) {
  const auto free = std::find_if(staging_free_from_.begin(), staging_free_from_.end(),
                                 [&](int from) { return from <= site_.step; });
  const auto index = static_cast<int>(free - staging_free_from_.begin());
  at(staging_free_from_, index) = wait;
  auto& size = at(capacity_.staging, index);
  size = std::max(size, bytes);
  return index;
}

}  // namespace annulus::executor
