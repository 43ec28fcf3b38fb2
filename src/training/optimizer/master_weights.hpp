#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/memory/array_table.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "training/optimizer/adamw.hpp"

namespace annulus::optimizer {

namespace detail {
template <class Exec, class T>
class OffloadedAdamW;
}

/// Where the master weights and their moments lie.
struct MasterOptions {
  AdamWOptions adamw = {};
  /// Whether the masters lie in pinned memory of the host instead of the memory of Exec (ZeRO-Offload, Ren et
  /// al. 2021).
  bool offload = false;
  /// Elements that are on their way at a time where they are offloaded.
  std::int64_t piece = std::int64_t{1} << 22;
};

/// Arrays of MasterWeights of `size` elements, with weights of type `weights`: the masters, their two
/// moments, and what pieces of offloaded ones travel in.
ArrayTable master_arrays(const MasterOptions& options, std::int64_t size, DType weights);

/// The fp32 master weights of a flat buffer, or of one shard of it, with AdamW's moments. A model computes
/// with weights of type T (float or bfloat16), which are the masters rounded.
///
/// Offloaded, they lie in pinned memory of the host and the host's threads update them, piece by piece: while
/// they work on one piece, the gradients of the next one come down and the new weights of the last one go up,
/// each on a stream of its own. The bits are those of the device. Where Exec is the host's space, its memory
/// stands for the device's.
///
/// Memory counts as MemoryCategory::parameters and optimizer, the buffers of pieces as workspace; pinned
/// memory is the host's. All work is enqueued on the `exec` that calls are given.
template <class Exec, class T>
class MasterWeights {
 public:
  /// Zeros, `size` of them. `ranges` as for AdamW, with its errors.
  MasterWeights(const Exec& exec, const MasterOptions& options, std::int64_t size,
                std::span<const ParameterRange> ranges);
  ~MasterWeights();

  std::int64_t size() const { return size_; }
  bool offloaded() const { return offloaded_ != nullptr; }

  /// Steps made so far.
  std::int64_t steps() const;
  /// Sets the steps of a restored state, together with the contents of the buffers.
  void set_steps(std::int64_t steps);

  /// Calls use(instance, masters, first_moment, second_moment) with what holds them: `exec` with arrays of
  /// its memory (size), or an instance of HostExec with arrays of the host's. The host may use those at once.
  template <class Use>
  decltype(auto) visit(const Exec& exec, const Use& use) const {
    if (!offloaded()) return use(exec, masters(), adamw_->first_moment(), adamw_->second_moment());
    const MasterArrays<HostExec> all = on_host();
    return use(HostExec(), all.masters, all.first_moment, all.second_moment);
  }

  /// The master weights, (size). They must not be offloaded.
  const Array1<float, Exec>& masters() const { return *masters_; }
  /// The first moment, (size). It must not be offloaded.
  const Array1<float, Exec>& first_moment() const { return adamw_->first_moment(); }

  /// Gives master weights [begin, begin + count) the values that fill(first, values) writes to `values`, an
  /// Array1<float, Exec>, for the elements from begin + first on; it is called until all are there.
  template <class Fill>
  void fill(const Exec& exec, std::int64_t begin, std::int64_t count, const Fill& fill) {
    if (!offloaded()) {
      if (count > 0) fill(std::int64_t{0}, Array1<float, Exec>(masters().data() + begin, count));
      return;
    }
    for (std::int64_t first = 0; first < count; first += piece_) {
      const auto values = Owned<Array1<float, Exec>>::uninitialized(exec, MemoryCategory::workspace,
                                                                    "annulus::optimizer::initial_values",
                                                                    std::min(piece_, count - first));
      fill(first, *values);
      write(exec, begin + first, *values);
    }
  }

  /// Masters and moments [begin, end) of rank `root` for all `ranks`. Collective.
  void broadcast(const Exec& exec, comm::Communicator& ranks, int root, std::int64_t begin,
                 std::int64_t end) const;

  /// step() calls it before it changes elements before `end`, which does not fall from call to call: once
  /// with size(), or, offloaded, piece by piece. It returns when they may change.
  using Gate = std::function<void(std::int64_t end)>;
  void set_gate(Gate gate) { gate_ = std::move(gate); }

  /// Master weights in memory of Exec: they themselves, or, offloaded, a copy that lives as long as this.
  struct Resident {
    Owned<Array1<float, Exec>> copy;
    Array1<float, Exec> values;  // (count)
  };
  Resident resident(const Exec& exec, std::int64_t begin, std::int64_t count) const;

  /// weights = the master weights from `begin` on, rounded to T.
  void round(const Exec& exec, std::int64_t begin, const Array1<T, Exec>& weights) const;

  /// Weights that a model computes with: those of the elements from `begin` on.
  struct WeightPart {
    std::int64_t begin = 0;
    Array1<T, Exec> weights;
  };
  /// A step with gradient_scale · gradients (size), as AdamW::step. `parts`, in order and without overlap,
  /// get the new weights rounded to T. Offloaded, the call returns when the step is made. Throws Error when a
  /// size does not fit.
  void step(const Exec& exec, const Array1<const float, Exec>& gradients, double learning_rate,
            float gradient_scale, std::span<const WeightPart> parts = {});

 private:
  template <class Space>
  struct MasterArrays {
    Array1<float, Space> masters, first_moment, second_moment;  // (size)
  };
  MasterArrays<HostExec> on_host() const;
  void require_inside(std::int64_t begin, std::int64_t end) const;
  /// Offloaded master weights from `begin` on = values. Waits.
  void write(const Exec& exec, std::int64_t begin, const Array1<const float, Exec>& values);

  std::int64_t size_, piece_;
  Gate gate_;
  Owned<Array1<float, Exec>> masters_;  // (size), unless offloaded
  std::optional<AdamW<Exec>> adamw_;    // unless offloaded
  std::unique_ptr<detail::OffloadedAdamW<Exec, T>> offloaded_;
};

}  // namespace annulus::optimizer
