#pragma once

#include <annulus/core/memory.hpp>
#include <annulus/core/tensor.hpp>
#include <cstdint>

/// Language-model head fused with cross-entropy.
namespace annulus::loss {

/// The target of a token that takes no part in the loss (the last token of a document).
inline constexpr std::int32_t ignored_target = -1;

/// The sum of −log softmax(logits)[target] over the tokens whose target is not ignored, and their number. The
/// sum is not finite when a logit is NaN or +inf: the caller decides what that means.
struct LossSum {
  double loss_sum = 0.0;
  std::int64_t valid = 0;
};

/// How LmHeadLoss cuts its work. Tiles of 0 are chosen: 1024 tokens, 4096 vocabulary entries. Tiles change
/// results by rounding only.
struct LmHeadOptions {
  std::int64_t sequence_tile = 0;
  std::int64_t vocabulary_tile = 0;
  /// Bound on the logits of one sequence tile: it holds fewer tokens than asked for where they need more, but
  /// one at least.
  std::int64_t workspace_bytes = std::int64_t{128} << 20;
};

namespace detail {

/// What the head keeps of one sequence tile. The softmax of a row is held as exponentials relative to the
/// maximum of their vocabulary tile.
template <class Exec>
struct LmHeadWorkspace {
  Owned<Array2<float, Exec>> logits;        // (sequence tile, vocabulary), later exponentials, then gradients
  Owned<Array2<float, Exec>> tile_max;      // (sequence tile, vocabulary tiles)
  Owned<Array1<float, Exec>> row_max;       // (sequence tile), over the vocabulary tiles so far
  Owned<Array1<double, Exec>> row_sum;      // (sequence tile), sum of exp(logit - row_max)
  Owned<Array1<float, Exec>> target_logit;  // (sequence tile)
  Owned<Array1<double, Exec>> loss_sum;     // (1)
};

}  // namespace detail

/// logits = hidden · weightᵀ and the cross-entropy of its rows, with the gradients made in the forward
/// (BurstEngine, Algorithm 3, where "+E" is a misprint for softmax − one-hot). Loops over tiles of the
/// sequence and the vocabulary: the logits of one sequence tile exist at a time, are exponentiated in place
/// once, and nothing is computed twice. Results do not depend on earlier calls, nor on the
/// number of threads as far as BLAS' do not. Keeps its workspace (MemoryCategory::workspace) from call to
/// call and enlarges it when a call needs more.
template <class Exec>
class LmHeadLoss {
 public:
  /// Throws Error when an option is negative or `workspace_bytes` is 0.
  explicit LmHeadLoss(const LmHeadOptions& options = {});

  /// The loss, with the gradients of grad_scale · loss_sum: the trainer passes 1 / (valid tokens of all ranks
  /// and micro-batches) for the mean.
  ///   hidden    (tokens, hidden_dim)
  ///   weight    (vocabulary, hidden_dim)
  ///   targets   (tokens), in [0, vocabulary) or ignored_target
  ///   d_hidden  (tokens, hidden_dim), overwritten; rows of ignored targets become 0
  ///   d_weight  (vocabulary, hidden_dim), added to
  /// Throws Error when sizes do not fit, or naming the first token whose target is out of range; the
  /// gradients are then untouched.
  LossSum forward_backward(const Exec& exec, const Array2<const float, Exec>& hidden,
                           const Array2<const float, Exec>& weight,
                           const Array1<const std::int32_t, Exec>& targets, float grad_scale,
                           const Array2<float, Exec>& d_hidden, const Array2<float, Exec>& d_weight);

  /// The loss alone, for evaluation. Arguments and errors as above.
  LossSum forward(const Exec& exec, const Array2<const float, Exec>& hidden,
                  const Array2<const float, Exec>& weight, const Array1<const std::int32_t, Exec>& targets);

  /// Bytes of workspace held now.
  std::int64_t workspace_bytes() const;

 private:
  using Matrix = Array2<const float, Exec>;
  using Targets = Array1<const std::int32_t, Exec>;
  struct Tiles {
    std::int64_t rows, columns, per_row;  // tokens, vocabulary entries, tiles along the vocabulary
  };
  struct Gradients {
    float scale;
    Array2<float, Exec> hidden, weight;
  };

  Tiles choose_tiles(std::int64_t tokens, std::int64_t vocabulary) const;
  void reserve(const Exec& exec, const Tiles& tiles, std::int64_t vocabulary);
  LossSum run(const Exec& exec, const Matrix& hidden, const Matrix& weight, const Targets& targets,
              const Gradients* gradients);

  LmHeadOptions options_;
  detail::LmHeadWorkspace<Exec> work_;
};

}  // namespace annulus::loss
