#pragma once

#include <functional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <annulus/attention/sequence/layout.hpp>
#include <annulus/attention/sequence/position_map.hpp>
#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/kernels/mask_on.hpp"

namespace annulus::attention {

/// The runs of a balanced layout in the memory of an execution space, for kernels that read shards of it.
/// Nothing for other layouts and on the host. Keeps the layouts, which own what shards borrow on the host.
template <class Exec>
class RunsOn {
 public:
  RunsOn() = default;
  /// Layouts that are equal: plans of one problem may each have their own.
  RunsOn(const Exec& exec, std::vector<Layout> equal) { set(exec, std::move(equal)); }

  /// Takes those of other layouts, in the same memory as far as that suffices: nobody uses the ones before.
  void set(const Exec& exec, std::vector<Layout> equal) {
    runs_.wait_for_copy();
    layouts_ = std::move(equal);
    if (!std::is_same_v<Exec, HostExec>) runs_.set(exec, "annulus::attention::runs", layouts_.front().runs());
  }

  /// A shard of one rank, or a slice of one, as kernels on Exec can read it. Throws Error for a shard of
  /// another layout.
  PositionMap operator()(PositionMap map) const {
    if (map.runs == nullptr || std::is_same_v<Exec, HostExec>) return map;
    for (const Layout& layout : layouts_) {
      const std::span<const RowRun> runs = layout.runs();
      if (!std::less()(map.runs, runs.data()) && std::less()(map.runs, runs.data() + runs.size())) {
        map.device_runs = runs_.data() + (map.runs - runs.data());
        return map;
      }
    }
    fail(
        "a kernel was given {} rows of a balanced cut whose runs are not in the memory of its device: give "
        "it shards of the layouts that the plans have",
        map.count);
  }

 private:
  std::vector<Layout> layouts_;  // from which the copies are made
  ValuesOn<Exec, RowRun> runs_;
};

}  // namespace annulus::attention
