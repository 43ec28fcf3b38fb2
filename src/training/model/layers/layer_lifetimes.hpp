#pragma once

#include <array>
#include <vector>

#include "training/model/layers/layer_tensors.hpp"

namespace annulus::model {

/// From which step to which a tensor holds something that is still needed.
struct Lifetime {
  int first = -1, last = -1;
  bool empty() const { return first < 0; }
  bool overlaps(const Lifetime& other) const {
    return !empty() && !other.empty() && first <= other.last && other.first <= last;
  }
};

/// What the steps of one pass read and write, in order. The passes (layer_passes.hpp) call it in the
/// place of their kernels, so that what runs and what memory it needs have one source.
class Lifetimes {
 public:
  /// The tensors that the memory between the layers does not hold, as the layer keeps them.
  explicit Lifetimes(TensorSet kept) : kept_(kept) {}

  /// A step of the pass reads and writes these.
  template <class Action>
  void operator()(TensorSet uses, const Action&) {
    uses.for_each([this](Tensor tensor) { use(tensor, step_); });
    ++step_;
  }
  template <class Action>
  void operator()(const char*, TensorSet uses, const Action& action) {
    (*this)(uses, action);
  }
  /// Held before the first step, and behind the last.
  void before(Tensor tensor) { use(tensor, 0); }
  void behind(Tensor tensor) { use(tensor, steps_at_most); }

  const Lifetime& of(Tensor tensor) const { return lifetimes_[static_cast<std::size_t>(tensor)]; }
  int steps() const { return step_; }

 private:
  static constexpr int steps_at_most = 1 << 30;
  void use(Tensor tensor, int step);

  TensorSet kept_;
  std::array<Lifetime, tensor_count> lifetimes_;
  int step_ = 0;
};

/// Places every tensor that lives in any of these passes in one block of memory: two lie at the same place
/// only where no pass needs both at once. Tensors that take most memory for longest come first, each at the
/// lowest place that is free; other orders are tried where that takes more than lives at once.
Placement place(const Shapes& shapes, const std::vector<Lifetimes>& passes);

}  // namespace annulus::model
