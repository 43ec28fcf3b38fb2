#pragma once

#include <annulus/base/dtype.hpp>
#include <annulus/base/kokkos/tensor.hpp>
#include <cstdint>

#include "base/kokkos/memory/array_table.hpp"
#include "base/kokkos/memory/memory.hpp"

/// Language-model head fused with cross-entropy.
namespace annulus::loss {

/// The target of a token that takes no part in the loss (the last token of a document).
inline constexpr std::int32_t ignored_target = -1;

/// The sum of −log softmax(logits)[target] over the tokens whose target is not ignored, and their number. The
/// sum is not finite when a logit is NaN, or +inf without a soft cap: the caller decides what that means.
struct LossSum {
  double loss_sum = 0.0;
  std::int64_t valid = 0;
};

/// How LmHeadLoss cuts the sequence. A tile of 0 is chosen, and so are bytes of 0: at most 1024 tokens and
/// 128 MiB on the host, 4096 tokens and 2 GiB on a device. Tiles change results by rounding only.
struct LmHeadOptions {
  std::int64_t sequence_tile = 0;
  /// Bound on the logits of one sequence tile: it holds fewer tokens than asked for where they need more, but
  /// one at least.
  std::int64_t workspace_bytes = 0;
  /// Logits become soft_cap · tanh(logit / soft_cap), in fp32 (Gemma 2); 0: they stay.
  float soft_cap = 0;
};

/// Sizes of the workspace that LmHeadLoss holds for calls with so many tokens.
struct LmHeadWorkspace {
  std::int64_t tokens = 0, tile = 0;  ///< of a call, and of a sequence tile
  std::int64_t row_stride = 0;        ///< fp32 elements from one row of logits to the next
  std::int64_t logits() const { return tile * row_stride; }  ///< fp32 elements
  ArrayTable arrays_beside_logits() const;
};
LmHeadWorkspace lm_head_workspace(std::int64_t tokens, std::int64_t vocabulary, bool on_host,
                                  const LmHeadOptions& options = {});

/// logits = soft_cap · tanh(logits / soft_cap), as LmHeadLoss has it; 0 leaves them. Any extents, contiguous.
template <class Exec>
void cap_logits(const Exec& exec, const Array2<float, Exec>& logits, float soft_cap);

namespace detail {

/// Sums over calls, where the kernels run.
struct LmHeadTotals {
  double loss_sum = 0.0;
  std::int64_t valid = 0;
  // The first target out of range, where there is one.
  std::int64_t wrong_token = -1, vocabulary = 0;
  std::int32_t wrong_target = 0;
};

}  // namespace detail

/// logits = hidden · weightᵀ and the cross-entropy of its rows, with the gradients made in the forward
/// (BurstEngine, Algorithm 3, where "+E" is a misprint for softmax − one-hot). Loops over tiles of the
/// sequence. The fp32 logits of one tile exist at a time, one kernel turns them into losses and, in their own
/// memory, into their gradient in T, and nothing is computed twice. Results do not depend on earlier calls,
/// nor on the number of threads as far as BLAS' do not.
///
/// The loss stays where it is computed until it is asked for: calls only enqueue work on `exec`, and take()
/// waits for it. Keeps its workspace (MemoryCategory::workspace) from call to call and enlarges it when a
/// call needs more.
///
/// T is the type of hidden states, weights and of the gradient of the hidden states: float or bfloat16.
/// Instantiated for HostExec and the device's space.
template <class Exec, class T = float>
class LmHeadLoss {
 public:
  using Matrix = Array2<const T, Exec>;
  using Targets = Array1<const std::int32_t, Exec>;

  /// Throws Error when an option is negative or not finite.
  explicit LmHeadLoss(const LmHeadOptions& options = {});

  /// Where forward_backward leaves the gradients of scale · loss_sum.
  struct Gradients {
    float scale = 1.0f;            ///< 1 / (valid tokens of all ranks and micro-batches) for the mean
    Array2<T, Exec> d_hidden;      ///< (tokens, hidden_dim), overwritten; rows of ignored targets become 0
    Array2<float, Exec> d_weight;  ///< (vocabulary, hidden_dim), added to
  };

  /// Adds the loss to what take() gives, and makes the gradients.
  ///   hidden    (tokens, hidden_dim)
  ///   weight    (vocabulary, hidden_dim)
  ///   targets   (tokens), in [0, vocabulary) or ignored_target
  /// Throws Error when sizes do not fit. A target out of range counts as ignored until take() reports it.
  ///
  /// `logits`: memory for those of a tile, (lm_head_workspace().logits()), aligned to 256 bytes, which holds
  /// nothing of use afterwards; without elements: the workspace has it.
  void forward_backward(const Exec& exec, const Matrix& hidden, const Matrix& weight, const Targets& targets,
                        const Gradients& gradients, const Array1<float, Exec>& logits = {});

  /// Marks of tokens, (tokens): 1 where the target is the greedy choice, the entry with the largest logit, of
  /// equal ones the first; 0 else, and where the target is ignored or a logit is no number. A soft cap, which
  /// keeps the order of logits, does not count. Without elements where nobody asks.
  using Greedy = Array1<std::uint8_t, Exec>;

  /// The loss alone, for validation. Arguments and errors as above.
  void forward(const Exec& exec, const Matrix& hidden, const Matrix& weight, const Targets& targets,
               const Array1<float, Exec>& logits = {}, const Greedy& greedy = {});

  /// Cross-entropies of the last call's tokens, in nats, (tokens or more); 0 where the target is ignored. The
  /// next call overwrites them.
  Array1<const double, Exec> losses() const { return *losses_; }

  /// sums(i) becomes the sum of losses() of the last call's tokens [i · tokens, i · tokens + tokens), for
  /// each element of `sums`, which have as many tokens as that call. Only enqueues work.
  void sum_losses(const Exec& exec, std::int64_t tokens, const Array1<double, Exec>& sums) const;

  /// What the calls since the last take(), or since construction, sum up to; starts again from 0. Waits for
  /// `exec`: the one synchronisation of a step. Throws Error naming the first token whose target is out of
  /// range; gradients made since then are worthless.
  LossSum take(const Exec& exec);

  /// Bytes of workspace held now.
  std::int64_t workspace_bytes() const;

 private:
  /// Returns the memory of the logits.
  Array1<float, Exec> reserve(const Exec& exec, const LmHeadWorkspace& sizes,
                              const Array1<float, Exec>& logits);
  void run(const Exec& exec, const Matrix& hidden, const Matrix& weight, const Targets& targets,
           const Gradients* gradients, const Array1<float, Exec>& logits, const Greedy& greedy);

  LmHeadOptions options_;
  Owned<Array1<float, Exec>>
      logits_;  // where callers bring none: of one tile, later their gradients; rows are padded
  Owned<Array1<double, Exec>> losses_;                // (tokens)
  Owned<Array1<detail::LmHeadTotals, Exec>> totals_;  // (1)
};

}  // namespace annulus::loss
