#pragma once

#include <cstdint>
#include <memory>

#include <annulus/comm/communicator.hpp>
#include <annulus/distributed/attention.hpp>
#include <annulus/plan/plan.hpp>
#include <annulus/sparsity/options.hpp>
#include <annulus/sparsity/pattern.hpp>
#include <annulus/sparsity/selection.hpp>

namespace annulus::sparsity {

/// Pairs of all heads, sequences and calls, over all ranks; `own` are this rank's of those computed.
struct Pairs {
  std::int64_t selected = 0;  ///< counted from the selections
  std::int64_t computed = 0;  ///< counted from what the kernels of all ranks were given
  std::int64_t selected_back = 0, computed_back = 0;  ///< of backward passes
  std::int64_t own = 0, own_back = 0;
};

/// Attention over the pairs that a pattern selects anew for each call (dynamic sparse attention; MTraining,
/// sections 4.1 to 4.3). Blocks run through the plans of a distributed::Attention, with block lists in the
/// place of its causal mask. Columns, the keys that all later queries see, are gathered once in each pass,
/// are computed by the ranks that own the queries, as one more partial result, and their gradients go home
/// once (docs/sparsity.md).
template <class Exec, class T>
class Attention {
 public:
  using Dense = distributed::Attention<Exec, T>;

  /// `dense` runs plans of `problem` and outlives this, as the communicator does. Throws Error where the mask
  /// is another than `causal`, where the options ask for what the sequence has not, or where ranks disagree
  /// about them.
  Attention(comm::Communicator& communicator, Dense& dense, const plan::Problem& problem,
            const Options& options, const attention::KernelOptions& kernel = {});
  ~Attention();
  Attention(Attention&&) noexcept;
  Attention& operator=(Attention&&) noexcept;

  /// The pairs for q (batch, heads, rows, head_dim) and k (batch, kv_heads, rows, head_dim), this rank's
  /// rows. Collective, as all of these are.
  Selection<Exec> select(const Exec& exec, const Array4<const T, Exec>& q, const Array4<const T, Exec>& k,
                         float scale);
  /// The passes of distributed::Attention over the selected pairs; `blocks` of the arrays is not read.
  void forward(const Exec& exec, const typename Dense::Forward& arrays, const Selection<Exec>& selection);
  void backward(const Exec& exec, const typename Dense::Backward& arrays, const Selection<Exec>& selection);

  /// Since construction or the last call. Waits for the passes.
  Pairs take_pairs(const Exec& exec);
  /// The same. Throws Error on all ranks where a pass computed more or fewer pairs than were selected: plans
  /// do not prove it, since they know no selection.
  Pairs check_pairs(const Exec& exec);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace annulus::sparsity
