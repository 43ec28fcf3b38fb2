#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include <annulus/base/kokkos/queue.hpp>

#include "base/kokkos/execution/event.hpp"
#include "base/kokkos/execution/own_instance.hpp"
#include "base/kokkos/memory/pinned.hpp"
#include "training/optimizer/adamw_update.hpp"
#include "training/optimizer/master_weights.hpp"

namespace annulus::optimizer::detail {

/// Master weights and moments in pinned memory of the host, updated there; see MasterWeights. Between calls
/// nothing is under way: the host may use the arrays.
template <class Exec, class T>
class OffloadedAdamW {
 public:
  using WeightPart = typename MasterWeights<Exec, T>::WeightPart;

  /// `arrays`: master_arrays.
  OffloadedAdamW(const MasterOptions& options, const ArrayTable& arrays,
                 std::span<const ParameterRange> ranges);

  Array1<float, HostExec> masters() const { return view(masters_); }              // (size)
  Array1<float, HostExec> first_moment() const { return view(first_moment_); }    // (size)
  Array1<float, HostExec> second_moment() const { return view(second_moment_); }  // (size)

  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

  /// Masters from `begin` on = values, and the reverse.
  void write(const Exec& exec, std::int64_t begin, const Array1<const float, Exec>& values);
  void read(const Exec& exec, std::int64_t begin, const Array1<float, Exec>& values) const;

  /// weights = masters from `begin` on, rounded.
  void round(const Exec& exec, std::int64_t begin, const Array1<T, Exec>& weights);

  void step(const Exec& exec, const Array1<const float, Exec>& gradients, double learning_rate,
            float gradient_scale, std::span<const WeightPart> parts,
            const typename MasterWeights<Exec, T>::Gate& gate);

 private:
  static constexpr bool rounds = !std::is_same_v<T, float>;

  /// Elements that travel together; `weights`: where they go, null: nowhere.
  struct OffloadedPiece {
    std::int64_t begin, end;
    T* weights;
    std::int64_t size() const { return end - begin; }
  };
  /// Memory of the host for one piece at a time.
  struct PieceSlot {
    PinnedBuffer gradients;  // (piece) float
    PinnedBuffer weights;    // (piece) T; float goes up as it is
    Event down, up;          ///< behind the last copy of gradients to it, and of weights from it
  };

  static Array1<float, HostExec> view(const PinnedBuffer& buffer) {
    const std::span<float> values = buffer.as<float>();
    return Array1<float, HostExec>(values.data(), values.size());
  }
  /// [0, size) in order: the parts, and what lies between them.
  std::vector<OffloadedPiece> cut(std::span<const WeightPart> parts) const;
  void update(const AdamWCoefficients& by, const OffloadedPiece& piece, const PieceSlot& slot);
  void fetch(const float* gradients, const OffloadedPiece& piece, PieceSlot& slot);
  void send(const OffloadedPiece& piece, PieceSlot& slot);

  OwnInstance<Exec> down_, up_;  // streams of the copies
  AdamWOptions options_;
  std::int64_t size_, piece_, steps_ = 0;
  std::vector<AdamWChunk> chunks_;
  PinnedBuffer masters_, first_moment_, second_moment_;
  std::array<PieceSlot, 2> slots_;
  Event ready_;  ///< behind what made the gradients and read the weights
};

}  // namespace annulus::optimizer::detail
