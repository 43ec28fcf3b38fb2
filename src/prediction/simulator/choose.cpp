#include <annulus/prediction/simulator/choose.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <span>
#include <utility>

#include <annulus/attention/plan/schedules.hpp>
#include <annulus/base/error.hpp>
#include <annulus/prediction/simulator/simulate.hpp>

#include "base/nearest.hpp"
#include "prediction/simulator/summary.hpp"

namespace annulus::simulator {
namespace {

/// Steps of ranks that are simulated altogether before estimates must do.
constexpr std::int64_t most_steps = 200'000;
/// Messages of a candidate, of one pass, with which it is simulated.
constexpr std::int64_t most_messages = 1'000'000;
/// Candidates whose estimate exceeds the best simulated time by more are not simulated, and those whose
/// simulated time does are not simulated beside other traffic.
constexpr double margin = 1.25;
/// Candidates that are simulated beside other traffic.
constexpr int most_beside = 12;
/// Times nearer to one another than this are the same.
constexpr double tie = 1e-3;

/// Stripes are such that a rank has some ten of them, enough for balance: a power of two, of more than one
/// token.
std::vector<Layout> layouts(const plan::Problem& problem, bool fixed) {
  using enum Layout::Kind;
  std::vector<Layout> all = {Layout(contiguous), Layout(zigzag), Layout(striped)};
  const std::int64_t widest = problem.mask.tokens() / problem.ranks() / 8;
  std::int64_t stripe = 1;
  while (2 * stripe <= widest) stripe *= 2;
  if (stripe > 1) all.emplace_back(block_striped, stripe);
  const MaskRule rule = problem.mask.rule();
  if (!fixed && rule.documents > 1 && rule.block_row_starts == nullptr && problem.positions == 0)
    all.emplace_back(balanced);
  return all;
}

/// Has `check` look at a text that is not "auto", which its error names, too.
void check_unless_auto(std::string_view text, const std::function<void()>& check) {
  if (text == automatic) return;
  try {
    check();
  } catch (const Error& error) {
    fail("{}, or {}, which chooses one{}", error.what(), automatic,
         is_near(edit_distance(text, automatic), text) ? fmt::format(": did you mean '{}'?", automatic) : "");
  }
}

class Chooser {
 public:
  Chooser(const plan::Problem& problem, std::span<const plan::Pass> passes, const Cluster& cluster,
          const ChooseOptions& options)
      : problem_(problem),
        passes_(passes),
        cluster_(cluster),
        memory_limit_(options.memory_limit),
        layers_(options.layers),
        layer_seconds_(options.layer_seconds),
        field_(options.schedule_field) {
    problem_.grid = {};
    if (layers_.empty()) layers_ = {{.mask = problem.mask, .selected = options.selected}};
    for (const PredictedLayers& of : layers_) masks_.push_back({of.mask, of.layers});
    if (std::ranges::any_of(layers_, [](const PredictedLayers& of) { return bool(of.selected.pairs); }))
      subset_ = plan::RankSubset::every_rank;
  }

  void add(const std::vector<std::string>& schedules, const Layout& layout) {
    for (std::size_t i = 0; i < schedules.size(); ++i) {
      EstimatedCandidate& entry = entries_.emplace_back();
      entry.order = {i, layouts_};
      entry.candidate.schedule = schedules[i];
      entry.candidate.layout = layout;
      try {
        for (const auto& [mask, layers, selected] : layers_)
          for (const plan::Pass pass : passes_) {
            const plan::Plan plan = plan_of(entry.candidate, mask, pass);
            entry.candidate.estimate += layers * coarse_time(plan, cluster_, selected.density);
            entry.steps += std::int64_t{plan.steps} * ranks_to_simulate(plan, Detail::times, subset_);
          }
      } catch (const Error& error) {
        entry.candidate.reason = error.what();
      }
    }
    ++layouts_;
  }

  ScheduleChoice choose() {
    std::ranges::stable_sort(entries_, {}, [](const EstimatedCandidate& e) { return e.candidate.estimate; });
    std::int64_t all = 0;
    for (const EstimatedCandidate& entry : entries_) all += entry.steps;
    double best = std::numeric_limits<double>::infinity();
    std::int64_t left = most_steps;
    for (EstimatedCandidate& entry : entries_) {
      const bool promising = all <= most_steps || entry.candidate.estimate <= margin * best;
      if (!promising || !entry.candidate.reason.empty()) continue;
      if (entry.steps <= left) simulate(entry);
      if (entry.candidate.seconds) {
        left -= entry.steps;
        best = std::min(best, *entry.candidate.seconds);
      } else if (memory_limit_ && entry.candidate.reason.empty()) {
        entry.too_large = true;
        entry.candidate.reason = "it has too many steps to simulate, so what its buffers need is not known";
      }
    }
    if (layer_seconds_) simulate_beside();
    return choice();
  }

 private:
  struct EstimatedCandidate {
    std::pair<std::size_t, int> order;  // of schedules and layouts, the simpler ones first
    std::int64_t steps = 0;             // that a simulation makes, roughly
    ScheduleCandidate candidate;

    bool too_large = false;  // for the memory limit

    /// What was simulated goes before what was only estimated, and beside other traffic before alone; what is
    /// out of the question comes last.
    int rank() const {
      if (candidate.reason.empty()) return candidate.beside ? 0 : candidate.seconds ? 1 : 2;
      return too_large ? 3 : 4;
    }
  };

  plan::Problem problem_of(const ScheduleCandidate& candidate, const Mask& mask) const {
    plan::Problem problem = problem_;
    problem.mask = mask;
    problem.layout = candidate.layout;
    return plan::arranged_for(candidate.schedule, std::move(problem), masks_, field_);
  }
  plan::Plan plan_of(const ScheduleCandidate& candidate, const Mask& mask, plan::Pass pass) const {
    return plan::make_plan(candidate.schedule, problem_of(candidate, mask), pass, field_);
  }

  void simulate(EstimatedCandidate& entry) const {
    ScheduleCandidate& candidate = entry.candidate;
    double seconds = 0;
    for (const auto& [mask, layers, selected] : layers_)
      for (const plan::Pass pass : passes_) {
        const plan::Plan plan = plan_of(candidate, mask, pass);
        if (messages_to_simulate(plan, Detail::times, subset_, most_messages) > most_messages) return;
        const Simulation simulation = simulator::simulate(plan, cluster_, Detail::times, subset_, selected);
        seconds += layers * simulation.time;
        for (const RankSummary& rank : simulation.ranks)
          candidate.buffer_bytes = std::max(candidate.buffer_bytes, rank.buffer_bytes);
      }
    if (memory_limit_ && candidate.buffer_bytes > *memory_limit_) {
      entry.too_large = true;
      candidate.reason = fmt::format("its exchange buffers have {} bytes per rank, more than the limit of {}",
                                     candidate.buffer_bytes, *memory_limit_);
    } else {
      candidate.seconds = seconds;
    }
  }

  /// Of the fastest ones alone.
  void simulate_beside() {
    sort();
    const std::optional<double> best = entries_.front().candidate.seconds;
    const auto most = std::min<std::size_t>(entries_.size(), most_beside);
    for (EstimatedCandidate& entry : std::span(entries_).first(most)) {
      ScheduleCandidate& candidate = entry.candidate;
      if (!candidate.seconds || !candidate.reason.empty() || *candidate.seconds > margin * *best) break;
      try {
        double seconds = 0;
        for (const auto& [mask, layers, selected] : layers_)
          seconds += layers * layer_seconds_(candidate.schedule, problem_of(candidate, mask), selected);
        candidate.beside = seconds;
      } catch (const Error& error) {
        candidate.reason = error.what();
      }
    }
  }

  void sort() {
    std::ranges::stable_sort(
        entries_, {}, [](const EstimatedCandidate& e) { return std::pair(e.rank(), e.candidate.time()); });
  }

  ScheduleChoice choice() {
    sort();
    const EstimatedCandidate& first = entries_.front();
    require(first.rank() < 3, "{}: no schedule serves {} ranks under mask {}: {} on layout {}: {}", field_,
            problem_.ranks(), problem_.mask.outline(), first.candidate.schedule,
            first.candidate.layout.to_string(), first.candidate.reason);
    auto chosen = entries_.begin();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      const bool tied =
          entry->rank() == first.rank() && entry->candidate.time() <= (1 + tie) * first.candidate.time();
      if (tied && entry->order < chosen->order) chosen = entry;
    }
    std::rotate(entries_.begin(), chosen, chosen + 1);
    ScheduleChoice choice{entries_.front().candidate.schedule,
                          entries_.front().candidate.layout,
                          entries_.front().candidate.time(),
                          {}};
    for (EstimatedCandidate& entry : entries_) choice.candidates.push_back(std::move(entry.candidate));
    return choice;
  }

  plan::Problem problem_;
  std::span<const plan::Pass> passes_;
  const Cluster& cluster_;
  std::optional<std::int64_t> memory_limit_;
  plan::RankSubset subset_ = plan::RankSubset::automatic;
  std::vector<PredictedLayers> layers_;
  std::vector<MaskedLayers> masks_;  // of layers_
  LayerSeconds layer_seconds_;
  std::string_view field_;
  int layouts_ = 0;
  std::vector<EstimatedCandidate> entries_;
};

}  // namespace

void check_schedule_or_auto(std::string_view text, std::string_view field) {
  check_unless_auto(text, [&] { plan::check_schedule(text, field); });
}

void check_layout_or_auto(std::string_view text, std::string_view field) {
  check_unless_auto(text, [&] { Layout::parse(text, field); });
}

std::vector<std::string> candidate_schedules(const plan::Problem& problem) {
  constexpr std::string_view grid = ":HxC";
  std::vector<std::string> names;
  for (const std::string& name : plan::schedule_names()) {
    if (!name.ends_with(grid)) {
      names.push_back(name);
      continue;
    }
    const std::string base = name.substr(0, name.size() - grid.size());
    for (int heads = 2; heads < problem.ranks() && heads <= problem.heads; ++heads) {
      if (problem.ranks() % heads != 0) continue;
      names.push_back(fmt::format("{}:{}x{}", base, heads, problem.ranks() / heads));
      if (problem.topology.nodes() > 1)
        names.push_back(names.back() + fmt::format(":{}", name_of(plan::GridPlacement::context_first)));
    }
  }
  return names;
}

ScheduleChoice choose(const plan::Problem& problem, std::string_view schedule, std::string_view layout,
                      std::span<const plan::Pass> passes, const Cluster& cluster,
                      const ChooseOptions& options) {
  problem.check();
  cluster.check();
  const bool any_schedule = schedule == automatic, any_layout = layout == automatic;
  if (!any_schedule)
    plan::arranged_for(schedule, problem, options.schedule_field);  // refuses names that do not exist
  const std::vector<std::string> names =
      any_schedule ? candidate_schedules(problem) : std::vector{std::string(schedule)};
  Chooser chooser(problem, passes, cluster, options);
  for (const Layout& each : any_layout ? layouts(problem, options.fixed_layouts)
                                       : std::vector{Layout::parse(layout, options.layout_field)})
    chooser.add(names, each);
  return chooser.choose();
}

}  // namespace annulus::simulator
