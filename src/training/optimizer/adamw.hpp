#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <annulus/base/kokkos/tensor.hpp>
#include <annulus/training/optimizer/options.hpp>

#include "base/kokkos/memory/memory.hpp"

namespace annulus::optimizer {

/// Elements [begin, end) of a flat parameter buffer, whether they decay (norms and embeddings usually do
/// not), and whether AdamW updates them at all.
struct ParameterRange {
  std::int64_t begin = 0, end = 0;
  bool decay = true;
  bool updated = true;

  friend bool operator==(const ParameterRange&, const ParameterRange&) = default;
};

/// The parts of `ranges` inside the shard [begin, end) of the buffer, counted from the shard's start.
std::vector<ParameterRange> ranges_of_shard(std::span<const ParameterRange> ranges, std::int64_t begin,
                                            std::int64_t end);

namespace detail {
/// At most a few thousand elements with one decay: what a team updates.
struct AdamWChunk {
  std::int64_t begin, end;
  bool decay;
};
}  // namespace detail

/// AdamW (Loshchilov and Hutter, Decoupled Weight Decay Regularization, Algorithm 2) with moments in fp32,
/// over one flat buffer or one shard of it:
///   p ← (1 − lr · weight_decay) · p,   m ← β1 m + (1 − β1) g,   v ← β2 v + (1 − β2) g²,
///   p ← p − lr · m / (1 − β1ᵗ) / (sqrt(v / (1 − β2ᵗ)) + ε).
/// Element by element, so shards give the parameters of the whole bit for bit. The state that a checkpoint
/// keeps is the two moments and the number of steps. Memory counts as MemoryCategory::optimizer.
template <class Exec>
class AdamW {
 public:
  /// `ranges` cover [0, size) in order without gap or overlap, else Error names the range. Moments start at
  /// 0.
  AdamW(const Exec& exec, const AdamWOptions& options, std::int64_t size,
        std::span<const ParameterRange> ranges);

  /// One step on `parameters` (size) with gradient_scale · gradients (size): the scale is what clipping
  /// asks for. In the same pass writes the new parameters, rounded to T (float or bfloat16), to `weights`
  /// (size, or none): what a model computes with. Where T is float, `weights` may be `parameters` itself.
  /// Throws Error when a size does not fit.
  template <class T = float>
  void step(const Exec& exec, const Array1<float, Exec>& parameters,
            const Array1<const float, Exec>& gradients, double learning_rate, float gradient_scale = 1.0f,
            const Array1<T, Exec>& weights = {});

  /// Steps made so far.
  std::int64_t steps() const { return steps_; }
  /// Sets the steps of a restored state, together with the contents of the moments.
  void set_steps(std::int64_t steps) { steps_ = steps; }

  const Array1<float, Exec>& first_moment() const { return *first_moment_; }    // (size)
  const Array1<float, Exec>& second_moment() const { return *second_moment_; }  // (size)

 private:
  AdamWOptions options_;
  std::int64_t steps_ = 0;
  Owned<Array1<float, Exec>> first_moment_, second_moment_;  // (size)
  Owned<Array1<detail::AdamWChunk, Exec>> chunks_;           // of [0, size), in order
};

}  // namespace annulus::optimizer
