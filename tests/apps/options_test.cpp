#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include <annulus/base/error.hpp>

#include "options/checks.hpp"
#include "options/cluster.hpp"
#include "options/problem.hpp"
#include "options/shared.hpp"
#include "support/error_text.hpp"

namespace annulus::options {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// A command with all kinds of values.
struct Command {
  Command() {
    SharedOptions shared(app);
    add_problem(shared, problem);
    add_cluster(shared, cluster);
    shared.add(Shared::schedule_or_auto, schedules, "; several");
    shared.add(Shared::layout, layout);
    shared.add(Shared::seed, seed);
    shared.add(Shared::nvlink_multicast, nvlink_multicast);
    shared.add(Shared::json, json, ": all of it");
  }
  std::string error(const std::string& line) {
    try {
      app.parse(line);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  CLI::App app;
  ProblemOptions problem = {.tokens = 64, .heads = 4};
  ClusterOptions cluster;
  std::vector<std::string> schedules = {"ring"};
  std::string layout = "zigzag";
  std::uint64_t seed = 1;
  bool nvlink_multicast = false;
  std::filesystem::path json;
};

TEST(SharedOptions, ReadIntoTheValuesOfTheCommand) {
  Command c;
  EXPECT_EQ(
      c.error("--tokens 128 --schedule auto burst --seed 7 --nvlink-multicast --json out.json --ranks 4"),
      "");
  EXPECT_EQ(c.problem.tokens, 128);
  EXPECT_EQ(c.problem.heads, 4);  // its default
  EXPECT_THAT(c.schedules, ElementsAre("auto", "burst"));
  EXPECT_EQ(c.layout, "zigzag");
  EXPECT_EQ(c.seed, 7U);
  EXPECT_TRUE(c.nvlink_multicast);
  EXPECT_EQ(c.json, "out.json");
  EXPECT_EQ(c.cluster.ranks, 4);
}

TEST(SharedOptions, HelpShowsTheRowTheCommandsPartAndTheDefault) {
  const std::string help = Command().app.help();
  EXPECT_THAT(help, mentions("Tokens of the whole sequence", "=64", "or auto: the planner chooses; several",
                             "JSON file to write: all of it"));
}

TEST(SharedOptions, ErrorsNameTheOption) {
  EXPECT_THAT(Command().error("--tokens 0"), HasSubstr("--tokens is 0"));
  EXPECT_THAT(Command().error("--tokens 3000000000"), HasSubstr("--tokens is 3000000000"));
  EXPECT_THAT(Command().error("--ranks 1000000"), HasSubstr("--ranks is 1000000: at most "));
  EXPECT_THAT(Command().error("--ranks-per-node 100000000"), HasSubstr("--ranks-per-node is 100000000"));
  EXPECT_THAT(Command().error("--batch -1"), HasSubstr("--batch is -1"));
  EXPECT_EQ(Command().error("--dtype f64"), "--dtype 'f64': attention stores f32, bf16 or f16");
  EXPECT_THAT(Command().error("--layout block-striped"), HasSubstr("write for instance block-striped:64"));
  EXPECT_THAT(Command().error("--kv-heads -1"), HasSubstr("--kv-heads is -1"));
  EXPECT_THAT(Command().error("--ranks-per-node -1"), HasSubstr("--ranks-per-node is -1"));
  EXPECT_THAT(Command().error("--schedule ring rng"), HasSubstr("there is no schedule 'rng'"));
  EXPECT_THAT(Command().error("--layout auto"), HasSubstr("--layout"));  // this command chooses no layout
  EXPECT_THAT(Command().error("--dtype f64"), HasSubstr("f64"));
  Command c;
  EXPECT_THROW(c.app.parse("--seed=-1"), CLI::ValidationError);
}

TEST(SharedOptions, TokensMayHaveAUnit) {
  Command c;
  EXPECT_EQ(c.error("--tokens 128k"), "");
  EXPECT_EQ(c.problem.tokens, 131072);
  Command millions;
  EXPECT_EQ(millions.error("--tokens 1M"), "");
  EXPECT_EQ(millions.problem.tokens, 1048576);
  for (const char* text :
       {"--tokens 12x", "--tokens 1.5k", "--tokens 9999999999G", "--tokens 010", "--tokens 010k"}) {
    Command wrong;
    EXPECT_THROW(wrong.app.parse(text), CLI::ValidationError) << text;
  }
}

TEST(SharedOptions, AreNotCheckedForHelp) {
  Command c;
  EXPECT_THROW(c.app.parse("--tokens 0 --help"), CLI::CallForHelp);
}

TEST(ProblemOptions, BecomeAProblem) {
  const ProblemOptions options = {.tokens = 100, .heads = 8, .kv_heads = 2, .head_dim = 16, .dtype = "bf16"};
  const plan::Problem problem = problem_of(options);
  EXPECT_EQ(problem.mask.tokens(), 100);
  EXPECT_EQ(problem.kv_heads, 2);
  EXPECT_EQ(problem.head_dim, 16);
  EXPECT_EQ(problem.dtype, DType::bf16);
  EXPECT_EQ(shape_of({.heads = 3}).kv_heads, 3);
  EXPECT_THROW(problem_of({.heads = 3, .kv_heads = 2}), Error);
  EXPECT_THROW(problem_of({.mask = "causl"}), Error);
}

TEST(ClusterOptions, TakeFromTheFileWhatIsLeftOpen) {
  simulator::Cluster cluster = cluster_of({});
  EXPECT_EQ(topology_of({}, cluster).to_string(), Topology::uniform(8, 8).to_string());
  EXPECT_EQ(topology_of({.ranks = 4}, cluster).ranks_on(0), 4);
  cluster.topology = Topology::uniform(6, 3);
  EXPECT_EQ(topology_of({}, cluster).nodes(), 2);
  EXPECT_EQ(topology_of({.ranks = 12}, cluster).nodes(), 4);
  cluster.topology = Topology({3, 2});
  EXPECT_EQ(topology_of({.ranks = 5}, cluster).ranks_on(1), 2);
  EXPECT_THROW(topology_of({.ranks = 4}, cluster), Error);
}

TEST(CheckMatrix, RefusesWhatBlasOr64BitsDoNotCount) {
  EXPECT_NO_THROW(check_matrix("--a and --b", 1 << 20, 1 << 20));
  EXPECT_THROW(check_matrix("--a and --b", 0, 1), Error);
  EXPECT_THROW(check_matrix("--a and --b", 1, std::int64_t{1} << 31), Error);
  EXPECT_THROW(check_matrix("--a and --b", 1 << 21, 1 << 20), Error);
}

TEST(WithPlacement, AddsTheWordToHybridsOnly) {
  EXPECT_EQ(with_placement("ring", "head-first"), "ring");
  EXPECT_EQ(with_placement("hybrid:2x4", "head-first"), "hybrid:2x4:head-first");
  EXPECT_EQ(with_placement("hybrid:2x4", ""), "hybrid:2x4");
  EXPECT_THROW(with_placement("hybrid:2x4:head-first", "context-first"), Error);
  EXPECT_THROW(with_placement("hybrid:2x4", "sideways"), Error);
}

}  // namespace
}  // namespace annulus::options
