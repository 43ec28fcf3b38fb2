#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/sequence/layout.hpp>
#include <annulus/prediction/simulator/cluster.hpp>
#include <annulus/prediction/simulator/simulate.hpp>

namespace annulus::simulator {

/// What stands for "choose for me" in the place of a schedule or a layout.
inline constexpr std::string_view automatic = "auto";

/// Throws Error naming `field` and the known names, where `text` is neither "auto" nor a schedule.
void check_schedule_or_auto(std::string_view text, std::string_view field);

/// Throws Error where `text` is neither a layout nor "auto".
void check_layout_or_auto(std::string_view text, std::string_view field);

/// Schedules as make_plan takes them, in the order of schedule_names; hybrids on every grid of more than one
/// rank each way whose groups have enough heads.
std::vector<std::string> candidate_schedules(const plan::Problem& problem);

/// A schedule on a layout, and what is known of it.
struct ScheduleCandidate {
  std::string schedule;
  Layout layout;
  double estimate = 0;            ///< seconds of all passes, looked at coarsely
  std::optional<double> seconds;  ///< of all passes, simulated; nothing when that was not worth while
  std::optional<double> beside;   ///< by ChooseOptions::layer_seconds; of the fastest ones
  std::int64_t buffer_bytes = 0;  ///< exchange buffers of the rank with the most; of simulated ones
  std::string reason;             ///< why it is out of the question; empty when it is not

  /// Seconds beside what else is on the links, or else simulated ones, or else the estimate.
  double time() const { return beside.value_or(seconds.value_or(estimate)); }
};

/// The best schedule and layout for a problem, and what it was chosen from.
struct ScheduleChoice {
  std::string schedule;  ///< as make_plan takes it
  Layout layout;
  double seconds = 0;                         ///< of all passes together
  std::vector<ScheduleCandidate> candidates;  ///< the best first; those out of the question behind
};

/// Layers of a model that share a mask and what they select of it.
struct PredictedLayers {
  Mask mask;
  int layers = 1;
  Selected selected = {};  ///< of the pairs that the mask allows; estimates take its density alone
};

/// Seconds of attention in a layer, all passes, beside what else is on the links of a run. `problem` is that
/// of the layer, with the layout and the grid of a candidate. An Error rules the candidate out.
using LayerSeconds = std::function<double(const std::string& schedule, const plan::Problem& problem,
                                          const Selected& selected)>;

struct ChooseOptions {
  /// Bytes that the exchange buffers of a rank have at most.
  std::optional<std::int64_t> memory_limit = std::nullopt;
  /// Layers whose masks take the place of the problem's: times are the sum over them; none: the problem once.
  std::vector<PredictedLayers> layers = {};
  /// auto leaves out the layout `balanced`. For dynamic sparsity, whose blocks this layout would cut, and for
  /// recompute of the first positions, which needs as many of their rows in each batch.
  bool fixed_layouts = false;
  Selected selected = {};  ///< PredictedLayers::selected of the problem, where there are no `layers`
  /// By which the fastest is chosen among the candidates that take least time alone. Empty: attention has the
  /// links for itself.
  LayerSeconds layer_seconds = {};
  std::string_view schedule_field = "schedule", layout_field = "layout";  ///< their names in errors
};

/// Chooses the schedule and the layout with which all `passes` together take the least time on `cluster`.
/// `schedule` and `layout` are names that make_plan and Layout::parse read, or "auto". The layout and the
/// grid of `problem` do not count.
///
/// Layouts are the fixed ones, with one width of stripes, and `balanced` where the mask has several documents
/// and no block list and all positions take part.
///
/// All candidates (schedules, hybrids for every grid, layouts) are looked at coarsely (docs/planning.md). In
/// the order of the estimates they are then simulated, as far as that is cheap: all of them for few ranks,
/// else those whose estimate is near the best simulated time. With ChooseOptions::layer_seconds the fastest
/// of these are simulated once more, beside what else travels. The least time wins; of those that differ by
/// less than a thousandth, the one that schedule_names and the list of layouts name first.
///
/// Pure and deterministic: ranks that ask the same get the same. Throws Error when a name does not exist, or
/// when nothing serves the problem within the limit.
ScheduleChoice choose(const plan::Problem& problem, std::string_view schedule, std::string_view layout,
                      std::span<const plan::Pass> passes, const Cluster& cluster,
                      const ChooseOptions& options = {});

}  // namespace annulus::simulator
