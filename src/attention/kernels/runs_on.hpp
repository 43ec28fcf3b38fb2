#pragma once

#include <Kokkos_Core.hpp>
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
#include "base/kokkos/memory/memory.hpp"

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
    layouts_ = std::move(equal);
    const std::span<const RowRun> runs = layouts_.front().runs();
    if (std::is_same_v<Exec, HostExec> || runs.empty()) return;
    if (!runs_.allocated() || runs_.view().size() < runs.size())
      runs_ = Runs::uninitialized(exec, MemoryCategory::data, "annulus::attention::runs",
                                  roomy_size(runs.size()));
    const Kokkos::View<const RowRun*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged> host(runs.data(),
                                                                                       runs.size());
    Kokkos::deep_copy(exec, Kokkos::subview(*runs_, std::pair<std::size_t, std::size_t>(0, runs.size())),
                      host);  // from memory that the layout keeps
  }

  /// A shard of one rank, or a slice of one, as kernels on Exec can read it.
  PositionMap operator()(PositionMap map) const {
    if (map.runs == nullptr || std::is_same_v<Exec, HostExec>) return map;
    for (const Layout& layout : layouts_) {
      const std::span<const RowRun> runs = layout.runs();
      if (!std::less()(map.runs, runs.data()) && std::less()(map.runs, runs.data() + runs.size()))
        map.device_runs = runs_.view().data() + (map.runs - runs.data());
    }
    ANNULUS_ASSERT(map.device_runs != nullptr);
    return map;
  }

 private:
  using Runs = Owned<Array1<RowRun, Exec>>;

  std::vector<Layout> layouts_;
  Runs runs_;
};

}  // namespace annulus::attention
