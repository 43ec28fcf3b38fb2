// The executor on emulated clusters of two nodes takes the time that the simulator predicts, with nothing
// else on the links and beside other traffic, and schedules that spare the links between nodes win by the
// predicted factors.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include <annulus/attention/plan/schedules.hpp>
#include <annulus/prediction/simulator/simulate.hpp>

#include "prediction/emulator/emulate.hpp"
#include "prediction/simulator/selected.hpp"

namespace annulus::emulator {
namespace {

using plan::Pass;

constexpr double tolerance = 0.15;

/// Seconds of a schedule's forward and backward pass, and those until what travels beside them has ended.
struct EmulatedTimes {
  double forward = 0, backward = 0, beside_forward = 0, beside_backward = 0;
  double both() const { return forward + backward; }
};

struct ScheduleOnLayout {
  std::string name, layout;
  bool operator<(const ScheduleOnLayout& o) const {
    return std::tie(name, layout) < std::tie(o.name, o.layout);
  }
};

/// One schedule is expected to beat another.
struct Race {
  ScheduleOnLayout faster, slower;
};

/// Rows are few and links slow, so that the machine has little to do and steps take tens of milliseconds.
plan::Problem problem_on(const Topology& topology, const std::string& layout) {
  plan::Problem problem;
  problem.topology = topology;
  problem.layout = Layout::parse(layout);
  problem.mask = Mask::parse("causal", 32 * topology.ranks());
  problem.heads = problem.kv_heads = 4;
  problem.head_dim = 16;
  return problem;
}

/// Times are those of the full attention between two shards in the forward pass (`compute`; half of it under
/// a causal mask), and of moving K and V of one shard.
simulator::Cluster cluster_of(double compute, double inside, double between) {
  constexpr double pair_flops = 32.0 * 32 * 4 * 4 * 16, shard_bytes = 2.0 * 32 * 4 * 16 * sizeof(float);
  simulator::Cluster cluster;
  cluster.intra_node = {.bandwidth = shard_bytes / inside, .latency = 1e-3};
  cluster.inter_node = {.bandwidth = shard_bytes / between, .latency = 2e-3};
  cluster.kernels = {{.pass = Pass::forward, .head_dim = 16, .rate = pair_flops / compute},
                     {.pass = Pass::backward, .head_dim = 16, .rate = pair_flops / compute}};
  return cluster;
}

/// Schedules on one cluster: what the simulator predicts and what the emulated run takes.
class Comparison {
 public:
  /// `traffic` travels beside every pass.
  Comparison(int ranks, simulator::Cluster cluster, simulator::SideTraffic traffic = {},
             simulator::Selected selected = {})
      : topology_(Topology::uniform(ranks, ranks / 2)),
        cluster_(std::move(cluster)),
        traffic_(std::move(traffic)),
        selected_(std::move(selected)) {}

  /// What other processes do to the machine makes runs slower and never faster: of up to three runs the
  /// fastest counts, or of up to ten where none of these is within the tolerance. A run that is near enough
  /// to its prediction is not repeated.
  void measure(const ScheduleOnLayout& schedule) {
    if (measured_.contains(schedule)) return;
    predicted_[schedule] = prediction(schedule);
    EmulatedTimes& best = measured_[schedule];
    best.forward = best.backward = std::numeric_limits<double>::infinity();
    for (int attempt = 0; attempt < 10 && error(schedule) > tolerance / (attempt < 3 ? 3 : 1); ++attempt) {
      const Passes passes = emulate(schedule);
      for (const auto& [pass, seconds, ended] :
           {std::tuple{&passes.forward, &best.forward, &best.beside_forward},
            {&passes.backward, &best.backward, &best.beside_backward}}) {
        for (const simulator::SideQueue& queue : traffic_.queues)
          EXPECT_GE(pass->beside_ended, simulator::seconds_alone(queue) - 1e-6) << name(schedule);
        if (pass->time >= *seconds) continue;
        *seconds = pass->time;
        *ended = pass->beside_ended;
      }
    }
  }

  /// The emulated times are those predicted.
  void expect_as_predicted(const ScheduleOnLayout& schedule) {
    measure(schedule);
    const EmulatedTimes m = measured_.at(schedule), p = predicted_.at(schedule);
    EXPECT_NEAR(m.forward / p.forward, 1, tolerance) << name(schedule) << ", predicted " << p.forward << " s";
    EXPECT_NEAR(m.backward / p.backward, 1, tolerance)
        << name(schedule) << ", predicted " << p.backward << " s";
    if (traffic_.empty()) return;
    EXPECT_NEAR(m.beside_forward / p.beside_forward, 1, tolerance) << name(schedule);
    EXPECT_NEAR(m.beside_backward / p.beside_backward, 1, tolerance) << name(schedule);
  }

  /// What shares the links makes both passes of the schedule longer by at least `factor`, as predicted.
  void expect_slowed_down(const ScheduleOnLayout& schedule, double factor) {
    expect_as_predicted(schedule);
    const EmulatedTimes m = measured_.at(schedule);
    for (const auto& [pass, seconds] : {std::pair{Pass::forward, m.forward}, {Pass::backward, m.backward}}) {
      const double alone = simulator::simulate(plan(schedule, pass), cluster_).time;
      EXPECT_GE(seconds / alone, factor) << name(schedule) << ", " << plan::name_of(pass);
    }
  }

  /// Both passes take about the share `selected` of the time that they would take with all pairs.
  void expect_time_of_selected(const ScheduleOnLayout& schedule) {
    expect_as_predicted(schedule);
    const double dense = simulator::simulate(plan(schedule, Pass::forward), cluster_).time +
                         simulator::simulate(plan(schedule, Pass::backward), cluster_).time;
    EXPECT_NEAR(measured_.at(schedule).both() / dense, selected_.density, 0.1) << name(schedule);
  }

  /// One schedule beats another by the predicted factor, forward and backward together. Where that is near 1
  /// either may be ahead.
  void expect_factor(const Race& race) {
    expect_as_predicted(race.faster);
    expect_as_predicted(race.slower);
    const double predicted = predicted_.at(race.slower).both() / predicted_.at(race.faster).both();
    const double measured = measured_.at(race.slower).both() / measured_.at(race.faster).both();
    const std::string which = name(race.faster) + " against " + name(race.slower);
    EXPECT_NEAR(measured / predicted, 1, tolerance) << which << ", predicted " << predicted;
    if (predicted > clear) {
      EXPECT_GT(measured, 1) << which << ", predicted " << predicted;
    }
  }

  /// The schedule is predicted to win clearly.
  void expect_win(const Race& race) {
    expect_factor(race);
    EXPECT_GT(predicted_.at(race.slower).both() / predicted_.at(race.faster).both(), clear)
        << name(race.faster) << " against " << name(race.slower);
  }

  plan::Plan plan(const ScheduleOnLayout& s, Pass pass) const {
    return plan::make_plan(s.name, problem_on(topology_, s.layout), pass);
  }

 private:
  static constexpr double clear = 1.1;

  static std::string name(const ScheduleOnLayout& s) { return s.name + " " + s.layout; }

  EmulatedTimes prediction(const ScheduleOnLayout& s) const {
    const auto predict = [&](Pass pass) {
      return simulator::simulate_beside(plan(s, pass), cluster_, selected_, traffic_);
    };
    const auto forward = predict(Pass::forward), backward = predict(Pass::backward);
    return {forward.simulation.time, backward.simulation.time, forward.traffic_ended, backward.traffic_ended};
  }

  Passes emulate(const ScheduleOnLayout& s) const {
    EmulationOptions options;
    plan::Problem heads_of_16;
    heads_of_16.head_dim = 16;
    options.settings.synthetic_kernel = sleeping_kernel(cluster_, heads_of_16);
    options.selected = selected_;
    options.beside_forward.flows = options.beside_backward.flows = traffic_;
    return run(plan(s, Pass::forward), plan(s, Pass::backward), cluster_, options).front();
  }

  double error(const ScheduleOnLayout& s) const {
    const EmulatedTimes m = measured_.at(s), p = predicted_.at(s);
    double error = std::max(std::abs(m.forward / p.forward - 1), std::abs(m.backward / p.backward - 1));
    if (traffic_.empty()) return error;
    for (const double ratio : {m.beside_forward / p.beside_forward, m.beside_backward / p.beside_backward})
      error = std::max(error, std::abs(ratio - 1));
    return error;
  }

  Topology topology_;
  simulator::Cluster cluster_;
  simulator::SideTraffic traffic_;
  simulator::Selected selected_;
  std::map<ScheduleOnLayout, EmulatedTimes> predicted_, measured_;
};

const ScheduleOnLayout topology_burst{"topology-burst", "zigzag"}, flat_ring{"ring", "zigzag"},
    double_ring{"double-ring", "zigzag"}, helper_worker{"helper-worker", "contiguous"},
    contiguous_ring{"ring", "contiguous"};

// Compute and links comparable: a pair of shards takes as long as K and V between nodes, and three times as
// long as inside.
void expect_wins(int ranks) {
  Comparison comparison(ranks, cluster_of(0.045, 0.015, 0.045));
  comparison.expect_win({topology_burst, flat_ring});
  comparison.expect_win({topology_burst, double_ring});
  comparison.expect_win({helper_worker, contiguous_ring});
}

// Side by side, since both sleep most of the time and nothing else may run meanwhile.
TEST(EmulateTwoNodes, FourAndEightRanks) {
  std::thread four(expect_wins, 4);
  expect_wins(8);
  four.join();
}

// Two gathers, each between the nodes and then inside, and a copy to the host share NVLink, NICs and PCIe
// with the passes.
void expect_slowed_down(int ranks) {
  simulator::Cluster cluster = cluster_of(0.03, 0.015, 0.03);
  cluster.memory.host_copy = cluster.inter_node.bandwidth;
  const double inside = cluster.intra_node.bandwidth, between = cluster.inter_node.bandwidth;
  using enum simulator::SideFlow::Way;
  Comparison comparison(ranks, cluster,
                        {{{{inter_node, 0.3 * between, between}, {intra_node, 0.1 * inside, inside}},
                          {{to_host, 0.3 * between, between}}}});
  comparison.expect_slowed_down(flat_ring, 2);
  comparison.expect_win({topology_burst, flat_ring});
  comparison.expect_as_predicted(double_ring);
}

TEST(EmulateTwoNodes, BesideOtherTraffic) {
  std::thread four(expect_slowed_down, 4);
  expect_slowed_down(8);
  four.join();
}

// Two lists of block diagonals, whose steps are uneven, and an even share, side by side: where ranks compute
// most of the time, passes take the time of these pairs.
TEST(EmulateTwoNodes, SelectedPairs) {
  const auto expect = [](const simulator::Selected& selected) {
    Comparison(4, cluster_of(0.12, 0.002, 0.004), {}, selected)
        .expect_time_of_selected({"ring", "block-striped:8"});
  };
  const simulator::SelectedBlocks blocks(32 * 4, 8, {{0, 1, 4, 5, 8}, {0, 2, 4, 6, 12}});
  std::thread even([&] { expect({0.3}); });
  expect(blocks.selected());
  even.join();
}

TEST(EmulateTwoNodes, OtherClustersSlow) {
  std::map<std::string, simulator::Cluster> clusters;
  clusters["as fast between nodes as inside"] = cluster_of(0.06, 0.04, 0.04);
  clusters["ten times slower between nodes"] = cluster_of(0.06, 0.012, 0.12);
  clusters["compute takes most"] = cluster_of(0.1, 0.01, 0.03);
  clusters["latency takes most"] = cluster_of(0.06, 0.004, 0.008);
  clusters["latency takes most"].intra_node.latency = 0.03;
  clusters["latency takes most"].inter_node.latency = 0.06;
  clusters["one NIC per node"] = cluster_of(0.06, 0.02, 0.04);
  clusters["one NIC per node"].nics_per_node = 1;
  clusters["two NICs per node"] = cluster_of(0.06, 0.02, 0.06);
  clusters["two NICs per node"].nics_per_node = 2;
  for (const auto& [name, cluster] : clusters) {
    for (const int ranks : {4, 8}) {
      SCOPED_TRACE(fmt::format("{}, {} ranks", name, ranks));
      Comparison comparison(ranks, cluster);
      comparison.expect_factor({topology_burst, flat_ring});
      comparison.expect_factor({topology_burst, double_ring});
      comparison.expect_factor({helper_worker, contiguous_ring});
      const std::string grid = fmt::format("hybrid:2x{}", ranks / 2);
      for (const char* schedule : {"burst", "hierarchical", "all-gather", grid.c_str()}) {
        comparison.expect_as_predicted({schedule, "zigzag"});
      }
    }
  }
}

}  // namespace
}  // namespace annulus::emulator
