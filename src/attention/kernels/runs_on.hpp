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
#include "attention/sequence/balanced_cut.hpp"

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
    if (!on_host) runs_.set(exec, label, layouts_.front().runs());
  }

  /// Makes room for the runs of any cut of a sequence of `tokens` tokens on so many ranks: later layouts of
  /// it take no other memory. The layouts stay.
  void reserve(const Exec& exec, std::int64_t tokens, int ranks) {
    if (on_host) return;
    runs_.wait_for_copy();
    runs_.reserve(exec, label, static_cast<std::size_t>(BalancedCut::most_runs(tokens, ranks)));
    set(exec, std::vector(layouts_));
  }
  /// Bytes that it makes room for on a device.
  static constexpr std::int64_t reserved_bytes(std::int64_t tokens, int ranks) {
    const auto runs = static_cast<std::size_t>(BalancedCut::most_runs(tokens, ranks));
    return static_cast<std::int64_t>(ValuesOn<Exec, RowRun>::room_for(runs) * sizeof(RowRun));
  }

  /// A shard of one rank, or a slice of one, as kernels on Exec can read it. Throws Error for a shard of
  /// another layout.
  PositionMap operator()(PositionMap map) const {
    if (map.runs == nullptr || on_host) return map;
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
  static constexpr bool on_host = std::is_same_v<Exec, HostExec>;
  static constexpr const char* label = "annulus::attention::runs";

  std::vector<Layout> layouts_;  // from which the copies are made
  ValuesOn<Exec, RowRun> runs_;
};

}  // namespace annulus::attention
