#pragma once

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/base/error.hpp>

#include "attention/executor/blocks/block.hpp"
#include "attention/plan/text.hpp"

/// What the slots of a rank hold while a plan is resolved step by step, and how much memory they take.
namespace annulus::executor {

/// Bytes of staging buffers and elements of slots that a program needs.
struct Capacity {
  std::array<std::vector<std::int64_t>, plan::tensor_count> slots;  ///< elements; slot 0 is not counted
  std::vector<std::size_t> staging;                                 ///< bytes

  /// Enough for both.
  void cover(const Capacity& other);
  /// Bytes of a slot, where activations are stored as `dtype`.
  std::size_t slot_bytes(plan::Tensor tensor, std::size_t slot, DType dtype) const {
    return static_cast<std::size_t>(slots[static_cast<std::size_t>(tensor)][slot]) *
           size_of(storage(tensor, dtype));
  }
};

/// A rank's step of a plan, for errors.
struct Site {
  const plan::Plan& plan;
  int rank = 0;
  int step = 0;

  /// Throws Error that names schedule, rank and step unless the condition holds.
  template <class... Args>
  void check(bool condition, fmt::format_string<Args...> message, Args&&... args) const {
    if (condition) return;
    fail("the {} plan of the {} pass cannot be run: rank {}, step {}: it {}", plan.schedule, plan.pass_text(),
         rank, step, fmt::format(message, std::forward<Args>(args)...));
  }
};

/// "k[3] rows 0:8 heads 0:2".
inline std::string text(const plan::TensorSlice& slice) {
  return plan::describe(slice);
}

/// Which slice a slot holds. The local slot always holds the rank's shard. `site` moves on with the steps,
/// and outlives this.
class SlotContents {
 public:
  explicit SlotContents(const Site& site) : site_(site) {}
  std::optional<plan::TensorSlice>& held(plan::Tensor tensor, plan::Slot slot);

 private:
  const Site& site_;
  std::array<std::vector<std::optional<plan::TensorSlice>>, plan::tensor_count> held_;
};

/// Functions that take a slice throw Error through the site when it is no part of its shard; `verb` is what
/// the rank was about to do with it ("sends").
class Slots {
 public:
  /// `site` moves on with the steps, and outlives this.
  explicit Slots(const Site& site) : site_(site), contents_(site) {}

  /// The compact array of a slice of this size at the beginning of the slot, which becomes large enough. What
  /// the slot is known to hold stays.
  StridedBlock landing(const plan::TensorSlice& slice, plan::Slot slot);
  /// What landing() gives; the slot holds the slice from here on.
  StridedBlock hold(const plan::TensorSlice& slice, plan::Slot slot);
  /// The slot holds nothing from here on.
  void release(plan::Tensor tensor, plan::Slot slot) { contents_.held(tensor, slot).reset(); }
  /// Where a slice lies that an earlier step has put into the slot.
  StridedBlock find(const plan::TensorSlice& slice, plan::Slot slot, const char* verb);
  /// Where a slice lies that is written, which in the local slot has to be a result of the pass.
  StridedBlock find_result(const plan::TensorSlice& slice, plan::Slot slot, const char* verb);
  /// A staging buffer that is free from this step until step `wait`.
  int take_staging(std::size_t bytes, int wait);

  /// What all of this takes.
  const Capacity& capacity() const { return capacity_; }

 private:
  void check_slice(const plan::TensorSlice& slice) const;

  const Site& site_;
  SlotContents contents_;
  std::vector<int> staging_free_from_;  // step
  Capacity capacity_;
};

}  // namespace annulus::executor
