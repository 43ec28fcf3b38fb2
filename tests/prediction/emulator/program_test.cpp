// annulus-bench emulate as its users run it. Times are held to predictions by two_nodes_test; here runs are
// short.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include <annulus/attention/plan/schedules.hpp>
#include <annulus/base/version.hpp>
#include <annulus/prediction/simulator/simulate.hpp>

#include "prediction/simulator/selected.hpp"
#include "prediction/simulator/side_traffic.hpp"
#include "support/attention/recorded_selection.hpp"
#include "support/error_text.hpp"
#include "support/shell.hpp"
#include "support/temporary_folder.hpp"
#include "training/io/atomic.hpp"

namespace annulus::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string cluster_text = R"(
[cluster]
nodes = 2
ranks_per_node = 2
[intra_node]
bandwidth = 1e6
latency = 1e-4
[inter_node]
bandwidth = 5e5
latency = 2e-4
[[kernel]]
pass = "forward"
head_dim = 16
rate = 1e7
[[kernel]]
pass = "backward"
head_dim = 16
rate = 1e7
)";

const std::string small = "--tokens 64 --heads 2 --head-dim 16 ";
/// The case of these options on the nodes of `cluster_text`.
plan::Problem small_problem() {
  return {.topology = Topology::uniform(4, 2),
          .layout = Layout::parse("zigzag"),
          .mask = Mask::parse("causal", 64),
          .heads = 2,
          .kv_heads = 2,
          .head_dim = 16};
}

class AnnulusBenchEmulate : public testing::Test {
 protected:
  ShellResult emulate(const std::string& arguments) const {
    return run_shell("'" ANNULUS_BENCH_PROGRAM "' emulate --repetitions 1 --cluster " + cluster + " " +
                     arguments);
  }

  TemporaryFolder folder;
  std::string cluster = folder.write("cluster.toml", cluster_text);
};

TEST_F(AnnulusBenchEmulate, MeasuredBesidePredicted) {
  EXPECT_THAT(
      output_of(emulate(
          small + "--schedule ring topology-burst helper-worker --layout zigzag --time-scale 4 --json " +
          folder.file("out.json"))),
      mentions("2 nodes × 2 ranks", "ring ", "helper-worker ", "zigzag", "refuses"));
  const json all = json::parse(io::read_text(folder.file("out.json")));
  EXPECT_EQ(all.at("git_hash"), git_hash());
  EXPECT_EQ(all.at("config").at("ranks"), 4);
  EXPECT_EQ(all.at("config").at("time_scale"), 4);
  ASSERT_EQ(all.at("schedules").size(), 3U);
  EXPECT_THAT(all.at("schedules")[2].at("unsupported").get<std::string>(), HasSubstr("consecutive"));

  const plan::Problem problem = small_problem();
  const simulator::Cluster read = simulator::read_cluster(cluster);
  double first = 0;
  for (int i = 0; i < 2; ++i) {
    const json& s = all.at("schedules")[i];
    const std::string name = s.at("schedule");
    double predicted = 0;
    for (const plan::Pass pass : {plan::Pass::forward, plan::Pass::backward}) {
      const double time = simulator::simulate(plan::make_plan(name, problem, pass), read).time;
      const json& p = s.at(std::string(plan::name_of(pass)));
      EXPECT_DOUBLE_EQ(p.at("predicted").at("seconds"), time);
      EXPECT_GE(p.at("seconds"), 0.99 * time);  // links and kernels are never early
      EXPECT_EQ(p.at("seconds_each").size(), 1U);
      predicted += time;
    }
    if (i == 0) first = predicted;
    EXPECT_NEAR(s.at("speedup_over_first").at("predicted"), first / predicted, 1e-9);
  }
}

// What ZeRO stage 3 and offload put on the links of two nodes of two ranks: a gather goes between the nodes
// and then inside, a sum the other way, and the latency of each counts as bytes.
TEST_F(AnnulusBenchEmulate, BesideTrafficOfALayer) {
  EXPECT_THAT(
      output_of(emulate(
          small + "--schedule ring --time-scale 4 --gather 8k --reduce 16k --offload 1000000000 --json " +
          folder.file("out.json"))),
      mentions("8192 bytes gathered", "16384 bytes reduced", "beside"));
  const json all = json::parse(io::read_text(folder.file("out.json")));
  EXPECT_EQ(all.at("config").at("gather"), 8192);
  EXPECT_EQ(all.at("config").at("reduce"), 16384);

  const plan::Problem problem = small_problem();
  const simulator::Cluster read = simulator::read_cluster(cluster);
  using enum simulator::SideFlow::Way;
  const auto between = [](double bytes) { return simulator::SideFlow{inter_node, bytes + 2e-4 * 5e5, 5e5}; };
  const auto inside = [](double bytes) { return simulator::SideFlow{intra_node, bytes + 1e-4 * 1e6, 1e6}; };
  const simulator::SideQueue to{{to_host, 1e9, read.memory.host_copy}},
      from{{from_host, 1e9, read.memory.host_copy}};
  const simulator::SideTraffic forward{{{between(2048), inside(4096)}, to}},
      backward{{{inside(8192), between(4096), between(2048), inside(4096)}, from}};
  for (const auto& [pass, traffic] :
       {std::pair{plan::Pass::forward, forward}, {plan::Pass::backward, backward}}) {
    const simulator::PlanBeside predicted =
        simulator::simulate_beside(plan::make_plan("ring", problem, pass), read, {}, traffic);
    const json& p = all.at("schedules")[0].at(std::string(plan::name_of(pass)));
    EXPECT_DOUBLE_EQ(p.at("predicted").at("seconds"), predicted.simulation.time);
    EXPECT_DOUBLE_EQ(p.at("beside").at("predicted_seconds"), predicted.traffic_ended);
    for (const simulator::SideQueue& queue : traffic.queues)
      EXPECT_GE(p.at("beside").at("seconds"), 0.99 * simulator::seconds_alone(queue));
  }
}

// 14 % of the pairs: kernels sleep, and the prediction counts, for these alone.
TEST_F(AnnulusBenchEmulate, SelectedPairs) {
  const std::string file = folder.file("dump.h5");
  write_selection(file, {1024, {{0, 2}, {1}}, {{5, 70, 1000}, {}}}, "layers.1.");
  EXPECT_THAT(
      output_of(emulate(
          "--tokens 1024 --heads 4 --kv-heads 2 --head-dim 16 --schedule ring --layout block-striped:64 "
          "--time-scale 0.2 --sparsity " +
          file + ":layers.1 --json " + folder.file("out.json"))),
      HasSubstr("kernels sleep for 14.488% of the pairs, without columns"));
  const json all = json::parse(io::read_text(folder.file("out.json")));

  const simulator::SelectedBlocks blocks(1024, 64, {{0, 2}, {1}});
  EXPECT_DOUBLE_EQ(all.at("config").at("density"), blocks.density());
  plan::Problem problem = small_problem();
  problem.layout = Layout::parse("block-striped:64");
  problem.mask = Mask::parse("causal", 1024);
  problem.heads = 4;
  const simulator::Cluster read = simulator::read_cluster(cluster);
  for (const plan::Pass pass : {plan::Pass::forward, plan::Pass::backward}) {
    const auto predicted = [&](const simulator::Selected& selected) {
      return simulator::simulate_beside(plan::make_plan("ring", problem, pass), read, selected, {})
          .simulation.time;
    };
    const double sparse = predicted(blocks.selected()), dense = predicted({});
    const json& p = all.at("schedules")[0].at(std::string(plan::name_of(pass)));
    EXPECT_DOUBLE_EQ(p.at("predicted").at("seconds"), sparse);
    EXPECT_GE(p.at("seconds"), 0.99 * sparse);
    EXPECT_LT(p.at("seconds"), (sparse + dense) / 2);
  }
}

TEST_F(AnnulusBenchEmulate, RealKernelsAndNoOverlap) {
  EXPECT_THAT(
      output_of(emulate(small + "--schedule burst --dtype bf16 --real-kernels --no-overlap --time-scale "
                                "1 --ranks 2 --ranks-per-node 1")),
      mentions("kernels compute", "without overlap"));
}

TEST_F(AnnulusBenchEmulate, OneRankWaitsForNoLink) {
  const std::string hours = folder.write(
      "hours.toml",
      "[intra_node]\nbandwidth = 1e6\nlatency = 1e4\n[inter_node]\nbandwidth = 1e6\nlatency = 1e4\n");
  const ShellResult result = run_shell("timeout 30 '" ANNULUS_BENCH_PROGRAM "' emulate --cluster " + hours +
                                       " --ranks 1 --repetitions 1 --schedule ring --time-scale 1");
  EXPECT_EQ(result.status, 0) << result.output;
}

TEST_F(AnnulusBenchEmulate, BadOptionsAreNamed) {
  for (const auto& [arguments, words] : {std::pair{"--schedule rings", "--schedule"},
                                         {"--time-scale -1", "--time-scale"},
                                         {"--heads 3 --kv-heads 2", "--kv-heads"},
                                         {"--ranks -2", "--ranks"},
                                         {"--tokens 0", "--tokens"},
                                         {"--dtype f64", "--dtype"},
                                         {"--json /no/such/folder/x.json", "/no/such/folder"},
                                         {"--kernel fast", "--kernel"},
                                         {"--gather -1", "--gather"},
                                         {"--reduce -5", "--reduce"},
                                         {"--reduce 8G", "--reduce"},
                                         {"--offload much", "--offload"},
                                         {"--sparsity 1", "from 0 to below 1"},
                                         {"--sparsity 0.5 --real-kernels", "leave out --real-kernels"},
                                         {"--ranks 1 --ranks-per-node 1 --gather 5", "--gather"}}) {
    const ShellResult result = emulate(arguments);
    EXPECT_EQ(result.status, 1) << arguments << ": " << result.output;
    EXPECT_THAT(result.output, HasSubstr(words));
  }
}

TEST_F(AnnulusBenchEmulate, IsNotForMpirun) {
  const ShellResult result =
      run_shell(std::string(ANNULUS_MPIRUN " 2 '") + ANNULUS_BENCH_PROGRAM "' emulate");
  EXPECT_NE(result.status, 0);
  EXPECT_THAT(result.output, HasSubstr("run it without mpirun and say --ranks"));
}

}  // namespace
}  // namespace annulus::test
