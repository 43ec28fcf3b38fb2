#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/sparsity/attention.hpp>

#include "base/kokkos/memory/memory.hpp"

namespace annulus::sparsity {

/// The pairs that passes select and compute, pass by pass, counted in memory of the execution space until
/// somebody asks: nobody waits for a pass.
template <class Exec>
class PairCounts {
 public:
  /// `steps`: of the plans of any pass.
  explicit PairCounts(int steps) : width_(steps + first_step) {}

  /// Counters of a pass, in memory of the execution space, all 0. Valid until the next call.
  struct Counters {
    std::int64_t* selected;  ///< by the selection, of all ranks
    std::int64_t* columns;   ///< computed by this rank
    std::int64_t* steps;     ///< computed by this rank in blocks, step by step (BlockLists::pairs)
  };
  Counters add(const Exec& exec, plan::Pass pass) {
    const std::size_t number = passes_.size();
    passes_.push_back(pass);
    if (!counts_.allocated() || number >= counts_.view().extent(0)) grow(exec, 2 * passes_.size());
    std::int64_t* const first = counts_.view().data() + static_cast<std::int64_t>(number) * width_;
    return {first + selected, first + columns, first + first_step};
  }

  /// Since the last call. Waits for the passes. Collective.
  SelectedPairs take(const Exec& exec, comm::Communicator& communicator) {
    const auto passes = std::exchange(passes_, {});
    std::vector<std::int64_t> mine(passes.size() * static_cast<std::size_t>(width_));
    if (!mine.empty()) {
      const Queue queue(exec);
      queue.copy_to_host(mine.data(), counts_.view().data(), mine.size() * sizeof(std::int64_t));
      queue.fence("annulus::sparsity::SparseAttention: pairs counted");
      Kokkos::deep_copy(exec, *counts_, std::int64_t{0});
    }
    if (passes.empty()) return {};
    const Queue host{HostExec()};
    std::vector<std::int64_t> all = mine;
    communicator.all_reduce(host, all.data(), all.size(), DType::i64, comm::ReduceOp::sum);

    // For each pass the largest load of a rank, and the largest shares of steps, summed over the ranks that
    // compute.
    std::vector<std::int64_t> largest(passes.size());
    std::vector<double> shares(2 * passes.size());
    for (std::size_t pass = 0; pass < passes.size(); ++pass) {
      const PassLoads loads = loads_of(mine, all, pass);
      largest[pass] = loads.own;
      if (loads.in_steps == 0) continue;
      shares[2 * pass] = double(loads.largest_step) * double(loads.steps) / double(loads.in_steps);
      shares[2 * pass + 1] = 1;
    }
    communicator.all_reduce(host, largest.data(), largest.size(), DType::i64, comm::ReduceOp::max);
    communicator.all_reduce(host, shares.data(), shares.size(), DType::f64, comm::ReduceOp::sum);

    SelectedPairs pairs;
    for (const plan::Pass kind : {plan::Pass::forward, plan::Pass::backward}) {
      SelectedPairs::OfPass& of = kind == plan::Pass::forward ? pairs.forward : pairs.backward;
      Balance sums{0, 0};
      for (std::size_t pass = 0; pass < passes.size(); ++pass) {
        if (passes[pass] != kind) continue;
        const std::int64_t computed = loads_of(all, all, pass).own;
        of.own += loads_of(mine, all, pass).own;
        of.selected += mine[pass * static_cast<std::size_t>(width_) + selected];
        of.computed += computed;
        ++of.passes;
        sums.workers += computed > 0 ? double(largest[pass]) * communicator.size() / double(computed) : 1;
        sums.steps += shares[2 * pass + 1] > 0 ? shares[2 * pass] / shares[2 * pass + 1] : 1;
      }
      if (of.passes > 0) of.imbalance = {sums.workers / double(of.passes), sums.steps / double(of.passes)};
    }
    return pairs;
  }

 private:
  static constexpr std::int64_t selected = 0, columns = 1, first_step = 2;  // places of a pass

  struct PassLoads {
    std::int64_t own = 0, in_steps = 0, largest_step = 0;
    std::int64_t steps = 0;  ///< in which any rank computes
  };
  PassLoads loads_of(const std::vector<std::int64_t>& mine, const std::vector<std::int64_t>& all,
                     std::size_t pass) const {
    const auto first = static_cast<std::int64_t>(pass) * width_;
    PassLoads loads;
    for (std::int64_t i = first + first_step; i < first + width_; ++i) {
      const std::int64_t load = mine[static_cast<std::size_t>(i)];
      loads.in_steps += load;
      loads.largest_step = std::max(loads.largest_step, load);
      if (all[static_cast<std::size_t>(i)] > 0) ++loads.steps;
    }
    loads.own = loads.in_steps + mine[static_cast<std::size_t>(first + columns)];
    return loads;
  }

  void grow(const Exec& exec, std::size_t passes) {
    auto more =
        Owned<Array2<std::int64_t, Exec>>::zeroed(exec, MemoryCategory::workspace, "annulus::sparsity::pairs",
                                                  passes, static_cast<std::size_t>(width_));
    if (counts_.allocated()) {
      const auto before = counts_.view();
      const Kokkos::pair<std::size_t, std::size_t> kept(0, before.extent(0));
      Kokkos::deep_copy(exec, Kokkos::subview(more.view(), kept, Kokkos::ALL), before);
    }
    counts_ = std::move(more);
  }

  std::int64_t width_;
  std::vector<plan::Pass> passes_;
  Owned<Array2<std::int64_t, Exec>> counts_;  // (passes that were ever there at once, width)
};

}  // namespace annulus::sparsity
