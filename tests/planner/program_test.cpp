// annulus-plan as its users run it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <annulus/attention/plan/schedules.hpp>
#include <annulus/base/version.hpp>
#include <annulus/prediction/simulator/simulate.hpp>

#include "support/attention/recorded_selection.hpp"
#include "support/error_text.hpp"
#include "support/shell.hpp"
#include "support/temporary_folder.hpp"
#include "training/io/atomic.hpp"
#include "training/io/hdf5_files/hdf5_writer.hpp"

namespace annulus::planner {
namespace {

using annulus::test::ShellResult;
using annulus::test::TemporaryFolder;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

ShellResult program(const std::string& arguments) {
  return annulus::test::run_shell("'" ANNULUS_PLAN_PROGRAM "' " + arguments);
}

/// What ends well.
std::string output(const std::string& arguments) {
  return output_of(program(arguments));
}

/// What fails: with status 1, one line, its name in front.
std::string failure(const std::string& arguments) {
  return output_of(program(arguments), 1);
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

const std::string small = "--ranks 4 --ranks-per-node 2 --tokens 64 --heads 4 --kv-heads 2 --head-dim 8 ";

TEST(AnnulusPlan, PrintsASummaryByDefault) {
  EXPECT_THAT(output(small + "--schedule burst --pass backward --validate"),
              mentions("burst backward: the plan is valid", "2 nodes × 2 ranks", "exposed communication",
                       "sent between nodes"));
}

TEST(AnnulusPlan, PlansTheFirstPositionsAlone) {
  const TemporaryFolder folder;
  const std::string file = folder.file("plan.json"),
                    halves = small + "--mask causal --positions 32 --validate ";
  EXPECT_THAT(output(halves + "--json '" + file + "'"),
              mentions("ring forward of the first 32 positions: the plan is valid",
                       "1.727 of ranks"));  // 7/4 of a long sequence
  EXPECT_EQ(json::parse(io::read_text(file))["config"]["positions"], 32);
  output(halves + "--layout striped --schedule auto");
  EXPECT_THAT(failure(small + "--mask full --positions 32"), HasSubstr("join causal to the mask"));
}

TEST(AnnulusPlan, ShowsWhoHoldsWhatOfDocuments) {
  const TemporaryFolder folder;
  const std::string file = folder.file("lengths.txt");
  io::write_text_atomically(file, "900 # the longest\n\n30\n30\n40\n", Links::refuse);
  const std::string lengths = "--ranks 4 --heads 4 --documents '" + file + "'",
                    options = lengths + " --schedule all-gather";
  const std::string result = output(options + " --validate");
  EXPECT_THAT(result, mentions("4 documents in 1000 tokens", "layout balanced", "layout zigzag", "rank 3",
                               "the plan is valid", "ranks need", "% more"));
  EXPECT_EQ(count(result, "busiest rank: 1.0"), 1U) << result;
  EXPECT_EQ(count(result, "  250 "), 8U) << result;
  EXPECT_THAT(result, HasSubstr("rank 0          250     2      3       1  0.313"))
      << "three documents whole";
  EXPECT_THAT(program(options + " --layout balanced").output, HasSubstr("layout zigzag"));
  // What is said of the fixed layout's messages is what is simulated.
  const auto between = [](const std::string& text, const std::string& before, const std::string& behind) {
    const std::size_t begin = text.find(before) + before.size();
    const std::string found = text.substr(begin, text.find(behind, begin) - begin);
    return found.substr(found.find_first_not_of(' '));
  };
  const std::string nodes = program(options + " --ranks-per-node 2").output,
                    zigzag = nodes.substr(nodes.find("layout zigzag"));
  EXPECT_THAT(zigzag, HasSubstr(fmt::format("all ranks send {} inside nodes and {} between nodes;",
                                            between(zigzag, "\nsent inside nodes ", "\n"),
                                            between(zigzag, "\nsent between nodes ", "\n"))));
  EXPECT_EQ(count(nodes, "; the busiest senders "), 2U);
  EXPECT_EQ(count(result, ", the busiest sender "), 2U);
  // What balanced cuts cannot have is shown without them.
  EXPECT_THAT(output(lengths + " --schedule helper-worker --layout contiguous"),
              mentions("not on the layout balanced: schedule helper-worker", "layout contiguous  rows"));
  EXPECT_THAT(failure(lengths + " --schedule helper-worker --layout balanced"), HasSubstr("helper-worker"));
  // The file says how long the sequence is, as --tokens may do as well.
  EXPECT_THAT(output(options + " --tokens 1000"), HasSubstr("1000 tokens, 4 heads"));
  EXPECT_THAT(
      failure(options + " --tokens 131072"),
      mentions("--tokens 131072 and --documents", "lengths.txt", "sum to 1000", "leave --tokens out"));
  io::write_text_atomically(file, "900\nmany\n", Links::refuse);
  EXPECT_THAT(failure(options), AllOf(HasSubstr("--documents"), HasSubstr("lengths.txt', line 2: 'many'")));
}

TEST(AnnulusPlan, RefusesEmptyValuesOctalNumbersAndFilesThatAreGivenTwice) {
  EXPECT_THAT(failure("--ranks 010"), mentions("--ranks: '010'", "zeros"));
  EXPECT_THAT(failure("--ranks 4 --tokens 010k"), mentions("--tokens: '010k'", "zeros"));
  EXPECT_THAT(output(small + "--positions 0"), HasSubstr("64 tokens"));
  for (const char* option : {"--cluster", "--documents", "--sparsity", "--json", "--html", "--tokens"})
    EXPECT_THAT(failure(small + option + " ''"), HasSubstr(option)) << option;
  const TemporaryFolder folder;
  const std::string lengths = folder.file("lengths.txt"), quoted = " '" + lengths + "'",
                    page = folder.file("page");
  io::write_text_atomically(lengths, "64\n", Links::refuse);
  EXPECT_THAT(failure(small + "--json '" + page + "' --html '" + folder.file("none/../page") + "'"),
              mentions("--json", "--html", "another name"));
  EXPECT_THAT(failure(small + "--documents" + quoted + " --json" + quoted),
              mentions("--json", "--documents"));
  EXPECT_EQ(io::read_text(lengths), "64\n");
  output(small + "--json '" + page + "'");
  output(small + "--json '" + page + "'");  // once more
}

TEST(AnnulusPlan, LeavesTheStepsOutOfTheFile) {
  const TemporaryFolder folder;
  const std::string file = folder.file("plan.json"), to_file = small + "--json '" + file + "'";
  output(to_file);
  json whole = json::parse(io::read_text(file));
  EXPECT_EQ(whole.at("plan").size(), 4U);
  EXPECT_GT(whole.at("planning_seconds"), 0);
  output(to_file + " --no-steps");
  json totals = json::parse(io::read_text(file));
  for (json* each : {&whole, &totals}) each->erase("planning_seconds");
  whole.erase("plan");
  EXPECT_EQ(totals, whole);
  EXPECT_THAT(failure(small + "--no-steps"), HasSubstr("--no-steps has an effect only with --json"));
}

TEST(AnnulusPlan, TakesBalancedForDocumentsThatAskForIt) {
  const TemporaryFolder folder;
  const std::string lengths = folder.file("lengths.txt"), slow = folder.file("slow.toml");
  std::string text = "400\n";  // most of the pairs, on fewer rows than a rank has
  for (int i = 0; i < 400; ++i) text += "4\n";
  io::write_text_atomically(lengths, text, Links::refuse);
  io::write_text_atomically(slow,
                            "[[kernel]]\npass = \"forward\"\nhead_dim = 128\nrate = 1e9\n"
                            "[[kernel]]\npass = \"backward\"\nhead_dim = 128\nrate = 1e9\n",
                            Links::refuse);
  const std::string options = "--ranks 4 --heads 4 --schedule all-gather --layout auto --cluster '" + slow +
                              "' --documents '" + lengths + "'";
  EXPECT_THAT(program(options).output, StartsWith("chosen: all-gather on layout balanced, of 5 possible"));
  EXPECT_THAT(program(options + " --compare").output, ContainsRegex("all-gather +balanced"));
  // Dynamic sparsity does not go with it.
  EXPECT_THAT(program(options + " --sparsity 0.5").output,
              AllOf(HasSubstr("of 4 possible"), Not(StartsWith("chosen: all-gather on layout balanced"))));
}

// Multi-head latent attention: operations and bytes are those of V's own columns, and rates those of Q's.
TEST(AnnulusPlan, CountsTheColumnsOfV) {
  const TemporaryFolder folder;
  const std::string slow = folder.file("slow.toml"), file = folder.file("plan.json");
  constexpr double rate = 1e3;
  std::string rates;
  for (const char* pass : {"forward", "backward"})
    for (const auto& [head_dim, of_head_dim] : {std::pair{24, rate}, {16, 1e9}})
      rates +=
          fmt::format("[[kernel]]\npass = \"{}\"\nhead_dim = {}\nrate = {}\n", pass, head_dim, of_head_dim);
  io::write_text_atomically(slow, rates, Links::refuse);
  for (const auto& [pass, flops] : {std::pair{"forward", 2 * 24 + 2 * 16}, {"backward", 6 * 24 + 4 * 16}}) {
    EXPECT_THAT(output(fmt::format(
                    "--ranks 4 --tokens 64 --heads 4 --kv-heads 2 --head-dim 24 --v-head-dim 16 --mask full "
                    "--pass {} --cluster '{}' --json '{}'",
                    pass, slow, file)),
                HasSubstr("24 (v 16)"));
    const json all = json::parse(io::read_text(file));
    EXPECT_NEAR(all.at("time").get<double>() / (16 * 64 * 4 * flops / rate), 1, 1e-3);  // links take nothing
    for (const json& of_rank : all.at("totals")) {
      const json& sent = of_rank.at("sent");
      const auto bytes = [&](const char* tensor) { return sent.at(tensor).at("intra_node").get<double>(); };
      EXPECT_EQ(bytes("v") * 24, bytes("k") * 16);
      EXPECT_EQ(bytes("k"), 3 * 16 * 2 * 24 * 2);
      if (sent.contains("dv")) {
        EXPECT_EQ(bytes("dv") * 24, bytes("dk") * 16);
      }
    }
  }
  EXPECT_THAT(failure(small + "--v-head-dim -1"), HasSubstr("--v-head-dim"));
}

TEST(AnnulusPlan, PrintsSteps) {
  const std::string one = output(small + "--print --rank 2");
  EXPECT_EQ(count(one, "\nrank "), 1U);
  EXPECT_THAT(one, HasSubstr("rank 2 (node 1)"));
  EXPECT_EQ(count(program(small + "--print").output, "\nrank "), 4U);
}

TEST(AnnulusPlan, JsonIsThePlan) {
  const TemporaryFolder folder;
  output(small +
         "--mask causal --layout zigzag --schedule topology-burst "
         "--pass backward --json " +
         folder.file("plan.json"));
  const json all = json::parse(io::read_text(folder.file("plan.json")));
  EXPECT_EQ(all.at("git_hash"), git_hash());
  EXPECT_EQ(all.at("config").at("schedule"), "topology-burst");
  EXPECT_EQ(all.at("config").at("ranks_per_node"), json({2, 2}));
  EXPECT_EQ(all.at("config").at("kv_heads"), 2);

  plan::Problem problem;
  problem.topology = Topology::uniform(4, 2);
  problem.layout = Layout::parse("zigzag");
  problem.mask = Mask::parse("causal", 64);
  problem.heads = 4;
  problem.kv_heads = 2;
  problem.head_dim = 8;
  problem.dtype = DType::bf16;
  const plan::Plan plan = plan::make_topology_burst(problem, plan::Pass::backward);
  const simulator::Simulation simulation = simulator::simulate(plan, simulator::default_cluster());
  EXPECT_EQ(all.at("time"), simulation.time);
  EXPECT_EQ(all.at("format_version"), 3);
  ASSERT_EQ(all.at("plan").size(), 4U);
  for (int rank = 0; rank < 4; ++rank) {
    const json& steps = all.at("plan").at(static_cast<std::size_t>(rank));
    ASSERT_EQ(std::ssize(steps), plan.steps);
    std::int64_t work = 0;
    std::map<std::string, std::map<std::string, std::int64_t>> sent;
    for (int s = 0; s < plan.steps; ++s) {
      const plan::Step expected = plan.step(rank, s);
      json computes = json::array(), sends = json::array(), senders = json::array();
      for (const plan::Compute& c : expected.computes) {
        const std::int64_t pairs = simulator::pairs_of(problem, c);
        computes.push_back(
            {{"q", c.q_shard}, {"kv", c.kv_shard}, {"work", pairs}, {"heads", {c.heads.begin, c.heads.end}}});
        work += pairs * c.heads.size();
      }
      for (const plan::Transfer& t : expected.sends) {
        const std::string link = rank / 2 == t.peer / 2 ? "intra_node" : "inter_node";
        const std::int64_t bytes = simulator::bytes_of(problem, t);
        sends.push_back({{"what", name_of(t.slice.tensor)},
                         {"of", t.slice.owner},
                         {"to", t.peer},
                         {"bytes", bytes},
                         {"link_class", link},
                         {"channel", name_of(t.channel)}});
        sent[std::string(name_of(t.slice.tensor))][link] += bytes;
      }
      const json& step = steps.at(static_cast<std::size_t>(s));
      for (const json& receive : step.at("recv")) senders.push_back(receive.at("from"));
      EXPECT_EQ(step.at("compute"), computes);
      EXPECT_EQ(step.at("send"), sends);
      ASSERT_EQ(senders.size(), expected.receives.size());
      for (std::size_t i = 0; i < senders.size(); ++i) EXPECT_EQ(senders[i], expected.receives[i].peer);
    }
    const json& totals = all.at("totals").at(static_cast<std::size_t>(rank));
    EXPECT_EQ(totals.at("work"), work);
    EXPECT_GT(totals.at("buffer_bytes"), 0);
    EXPECT_EQ(totals.at("exposed_communication"), simulation.ranks[rank].exposed_communication);
    EXPECT_FALSE(sent.contains("k"));  // K and V stay
    EXPECT_EQ(totals.at("sent").size(), sent.size());
    for (const auto& [tensor, by_link] : sent)
      for (const auto& [link, bytes] : by_link) EXPECT_EQ(totals.at("sent").at(tensor).at(link), bytes);
  }
}

TEST(AnnulusPlan, ComparesAllSchedules) {
  const TemporaryFolder folder;
  EXPECT_THAT(
      output("--ranks 4 --ranks-per-node 2 --layout zigzag --compare --json " + folder.file("plan.json")),
      AllOf(HasSubstr("topology-burst"), HasSubstr("hybrid:2x2"), HasSubstr("imbalance"),
            ContainsRegex("\nhelper-worker +refuses: "), HasSubstr("use layout contiguous")));
  const json rows = json::parse(io::read_text(folder.file("plan.json"))).at("comparison");
  double before = 0;
  std::size_t served = 0;
  for (const json& row : rows) {
    if (row.contains("unsupported")) continue;
    EXPECT_GE(row.at("time").get<double>(), before);
    before = row.at("time");
    ++served;
  }
  EXPECT_EQ(served, rows.size() - 1);
  EXPECT_EQ(rows.size(), plan::schedule_names().size() + 1);  // the hybrid in both placements
  EXPECT_EQ(rows.back().at("schedule"), "helper-worker");
}

TEST(AnnulusPlan, TakesADensityOrARecordedSelection) {
  const TemporaryFolder folder;
  const std::string file = folder.file("dump.h5"), plan = folder.file("plan.json");
  constexpr std::uint64_t tokens = 1024;
  // Of two kv heads: slashes 0 and 2, and 1; three columns, and five.
  test::write_selection(file, {tokens, {{0, 2}, {1}}, {{5, 70, 1000}, {0, 100, 200, 300, 400}}}, "layers.1.");
  const std::string problem = "--ranks 4 --tokens 1024 --heads 4 --kv-heads 2 --head-dim 64 --schedule ring ";
  const auto found = [&](const std::string& arguments) {
    output(problem + arguments + " --json " + plan);
    return json::parse(io::read_text(plan));
  };
  const json dense = found(""), sparse = found("--sparsity 0.75"),
             recorded = found("--layout block-striped:64 --sparsity " + file + ":layers.1");
  const auto work = [](const json& all) {
    std::int64_t sum = 0;
    for (const json& rank : all.at("totals")) sum += rank.at("work").get<std::int64_t>();
    return sum;
  };
  EXPECT_NEAR(double(work(sparse)), 0.25 * double(work(dense)), 10);
  EXPECT_EQ(sparse.at("config").at("density"), 0.25);
  EXPECT_FALSE(dense.at("config").contains("density"));
  // There are 16 blocks: 16 on the diagonal, 14 two behind it, 15 one behind it; two heads each.
  EXPECT_EQ(work(recorded), 2 * (16 * 64 * 65 / 2 + (14 + 15) * 64 * 64));
  EXPECT_GT(recorded.at("imbalance").at("step").get<double>(), 1);
  // dK and dV of two selections with five columns, in fp32; a sum over 4 ranks sends 2 · 3/4 of that. K and V
  // pass by in a ring; where they stay they are summed, too, in 2 bytes.
  EXPECT_EQ(recorded.at("column_bytes"), 0);
  const std::string backward = "--pass backward --layout block-striped:64 --sparsity " + file + ":layers.1";
  EXPECT_EQ(found(backward).at("column_bytes"), 2 * (2 * 5) * 64 * 4 * 3 / 2);
  output("--ranks 4 --tokens 1024 --heads 4 --kv-heads 2 --head-dim 64 --schedule burst " + backward +
         " --json " + plan);
  EXPECT_EQ(json::parse(io::read_text(plan)).at("column_bytes"), 2 * (2 * 5) * 64 * (2 + 4) * 3 / 2);
  EXPECT_FALSE(sparse.contains("column_bytes"));

  EXPECT_THAT(failure(problem + "--sparsity 1"), HasSubstr("from 0 to below 1"));
  EXPECT_THAT(failure(problem + "--sparsity " + file), HasSubstr("dump.h5:layers.0"));
  EXPECT_THAT(failure("--tokens 4096 --heads 4 --sparsity " + file + ":layers.1"),
              HasSubstr("set --tokens 1024"));
  EXPECT_THAT(failure("--tokens 1024 --heads 3 --sparsity " + file + ":layers.1"), HasSubstr("set --heads"));
  EXPECT_THAT(failure(problem + "--mask full --sparsity " + file + ":layers.1"), HasSubstr("use causal"));

  const std::string blocks = folder.file("blocks.h5");
  {
    io::FileWriter dump = io::FileWriter::create(blocks);
    std::vector<std::uint8_t> bits(2 * tokens * 2);  // of two lists the diagonal, and of one block column 3
    for (std::size_t row = 0; row < 2 * tokens; ++row) {
      const std::size_t own = row % tokens / 64;
      bits[2 * row + own / 8] |= static_cast<std::uint8_t>(1u << (own % 8));
      if (row >= tokens && own > 3) bits[2 * row] |= 1u << 3;
    }
    dump.write("selected_blocks", std::span<const std::uint8_t>(bits), {1, 2, tokens, 2});
    dump.close();
  }
  const json of_blocks = found("--layout block-striped:64 --sparsity " + blocks);
  EXPECT_EQ(work(of_blocks), 2 * (2 * 16 * 64 * 65 / 2 + 12 * 64 * 64));
  EXPECT_EQ(of_blocks.at("column_bytes"), 0);

  // Block 3 lies on rank 3. The others need it for one kv head, and nothing else of another rank.
  const json& kept = of_blocks.at("received_keys").at("of_kv_heads");
  EXPECT_EQ(kept.at("visible").get<int>() - kept.at("unneeded").get<int>(), 3 * 64);
  EXPECT_THAT(program(problem + "--layout block-striped:64 --sparsity " + blocks).output,
              mentions("unneeded K, V rows", "nor passed on"));

  const std::string of_queries = folder.file("queries.h5");
  {
    io::FileWriter dump = io::FileWriter::create(of_queries);
    std::vector<std::uint8_t> bits(2 * tokens *
                                   2);  // of all even tokens the own block, of the others block 0
    for (std::size_t row = 0; row < 2 * tokens; ++row) {
      const std::size_t column = row % 2 == 0 ? row % tokens / 64 : 0;
      bits[2 * row + column / 8] |= static_cast<std::uint8_t>(1u << (column % 8));
    }
    dump.write("selected_query_blocks", std::span<const std::uint8_t>(bits), {1, 2, tokens, 2});
    dump.close();
  }
  const json queries = found("--layout block-striped:64 --sparsity " + of_queries);
  // In a block 32 · 32 causal pairs of even tokens, 32 · 33 of the others; 64 for each of the 32 elsewhere.
  EXPECT_EQ(work(queries), 4 * (16 * 32 * 32 + 32 * 33 + 15 * 32 * 64));
  EXPECT_EQ(queries.at("column_bytes"), 0);
  const json& of_all = queries.at("received_keys").at("of_all_heads");
  EXPECT_EQ(of_all.at("visible").get<int>() - of_all.at("unneeded").get<int>(), 3 * 64);
}

TEST(AnnulusPlan, HtmlNeedsNothingElseAndDrawsEverySpan) {
  const TemporaryFolder folder;
  output(small + "--mask full --schedule ring --html " + folder.file("plan.html"));
  const std::string page = io::read_text(folder.file("plan.html"));
  EXPECT_EQ(count(page, "http"), 1U);  // the name of the SVG namespace
  EXPECT_EQ(count(page, "src="), 0U);
  EXPECT_EQ(count(page, "class=\"row-name\""), 4U);
  EXPECT_EQ(count(page, "queries of"), 16U);
  EXPECT_EQ(count(page, "k of shard"), 12U);
  EXPECT_EQ(count(page, "v of shard"), 12U);
  EXPECT_EQ(count(page, "<g>"), count(page, "</g>"));
  EXPECT_THAT(page, AllOf(StartsWith("<!DOCTYPE html>"), HasSubstr("to other nodes"), HasSubstr("K, V"),
                          HasSubstr("</svg>"), HasSubstr(std::string(git_hash()))));
}

TEST(AnnulusPlan, NamesTheNewNamesOfOptionsAndKeys) {
  const TemporaryFolder folder;
  const std::string file = folder.write("old.toml", "[between]\nbandwidth = 1e3\n"),
                    rails = folder.write("rails.toml", "[inter_node]\nbandwidth = 1e3\nrails = 1\n");
  EXPECT_THAT(failure("--topology " + file), mentions("--topology", "--cluster"));
  EXPECT_THAT(failure("--cluster " + file), mentions(file + ":1:", "inter_node"));
  EXPECT_THAT(failure("--cluster " + rails), mentions(rails + ":3:", "nics_per_node"));
}

TEST(AnnulusPlan, TakesRanksAndLinksFromAClusterFile) {
  const TemporaryFolder folder;
  const std::string file = folder.write("c.toml",
                                        "[cluster]\nnodes = 2\nranks_per_node = [3, 2]\n"
                                        "[intra_node]\nbandwidth = 1e3\nlatency = 0\n"
                                        "[inter_node]\nbandwidth = 1e3\nlatency = 0\n");
  // Four rounds of K and V: 2 rows · 4 · 4 bytes each at 1000 bytes/s; compute takes next to nothing.
  EXPECT_THAT(output("--tokens 10 --heads 1 --head-dim 4 --dtype f32 "
                     "--mask full --layout contiguous --cluster " +
                     file),
              mentions("2 nodes", "256.000 ms"));
  EXPECT_THAT(program("--ranks 4 --ranks-per-node 2 --cluster " + file).output,
              HasSubstr("2 nodes × 2 ranks"));
  EXPECT_THAT(failure("--ranks 4 --cluster " + file),
              mentions("--ranks 4 is not the number of ranks", "say --ranks-per-node"));
}

TEST(AnnulusPlan, ErrorsNameTheOption) {
  for (const auto& [arguments, words] :
       {std::pair{"--schedule rng", "annulus-plan: --schedule"},
        {"--heads 6 --kv-heads 4", "--kv-heads 4"},
        {"--tokens 0", "--tokens is 0"},
        {"--ranks -1", "--ranks is -1"},
        {"--layout diagonal", "--layout"},
        {"--mask causl", "--mask"},
        {"--dtype f64", "f64"},
        {"--pass sideways", "--pass sideways"},
        {"--rank 1", "--print"},
        {"--print --rank 8", "--rank 8: there are ranks 0 to 7"},
        {"--schedule helper-worker", "use layout contiguous"},
        {"--unknown", "--unknown"},
        {"--tokenz 5", "did you mean --tokens?"},
        {"--seq-len=5", "did you mean --tokens?"},  // as others call it
        {"--ranks 1000000", "--ranks is 1000000"},
        {"--ranks 100000000 --ranks-per-node 100000000", "--ranks is 100000000"},
        // Totals overflowed ("sent -15762598692126720 B"), or took minutes and all memory.
        {"--tokens 2147483648 --heads 65536", "2147483648 tokens, 65536 heads"},
        {"--tokens 1M --heads 4096 --batch 1000000 --mask window:0,0", "batch 1000000"},
        {"--heads 100000000", "100000000"},
        {"--head-dim 2000000000", "2000000000"}})
    EXPECT_THAT(failure(arguments), HasSubstr(words));
  EXPECT_THAT(failure("--utterly-other"), Not(HasSubstr("did you mean")));
}

TEST(AnnulusPlan, TotalsOfManyRanksFit) {
  EXPECT_THAT(output("--ranks 8192 --tokens 16M --heads 32 --head-dim 128"),
              Not(ContainsRegex("sent [^\n]*-[0-9]")));
}

TEST(AnnulusPlan, NamesTheRatesThatItPredictsBy) {
  TemporaryFolder folder;
  const std::string file = (folder.path() / "slow.toml").string();
  io::write_text_atomically(file, "[intra_node]\nbandwidth = 1e9\n");
  for (const std::string how : {"", "--compare", "--schedule auto"}) {
    EXPECT_THAT(program(small + how).output,
                HasSubstr("predicted by rates of the default cluster, 8-GPU nodes"))
        << how;
    EXPECT_THAT(program(small + how + " --cluster " + file).output,
                AllOf(HasSubstr("predicted by rates of " + file), Not(HasSubstr("H100"))))
        << how;
  }
  io::write_text_atomically(file, "guessed = true\n[intra_node]\nbandwidth = 1e9\n");
  EXPECT_THAT(program(small + " --cluster " + file).output,
              HasSubstr("predicted by rates of " + file + " (guessed, not measured"));
  const std::string plan = (folder.path() / "plan.json").string();
  ASSERT_EQ(program(small + "--json " + plan).status, 0);
  EXPECT_THAT(json::parse(io::read_text(plan))["config"]["cluster_source"], HasSubstr("default cluster"));
}

TEST(AnnulusPlan, HelpHasGroupsAndExamplesThatWork) {
  const std::string help = program("--help").output;
  for (const char* group : {"The cluster:", "The problem:", "The schedule:", "What is shown:", "Examples:"})
    EXPECT_THAT(help, HasSubstr(group));
  EXPECT_THAT(program("--version").output, StartsWith("annulus-plan "));
}

TEST(AnnulusPlan, ChoosesScheduleAndLayout) {
  EXPECT_THAT(output("--ranks 4 --ranks-per-node 2 --kv-heads 8 --schedule auto --layout auto "
                     "--pass backward --validate"),
              AllOf(StartsWith("chosen: "), HasSubstr("estimate ms  simulated ms"),
                    HasSubstr(" backward: the plan is valid"), Not(HasSubstr("layout auto"))));
  EXPECT_THAT(program("--ranks 4 --layout auto --schedule burst").output,
              AllOf(StartsWith("chosen: burst on layout "), HasSubstr("burst, forward: ")));
  EXPECT_THAT(failure(small + "--schedule auto --memory-limit 1"), HasSubstr("limit of 1"));
  EXPECT_THAT(failure(small + "--memory-limit 1"), HasSubstr("--memory-limit has an effect only with"));
  EXPECT_THAT(failure(small + "--schedule auto --memory-limit -1"), HasSubstr("--memory-limit is -1"));
  EXPECT_THAT(output(small + "--schedule auto --memory-limit 1 --compare"),
              AllOf(HasSubstr("ulysses"), Not(ContainsRegex("\nulysses +zigzag"))));
}

TEST(AnnulusPlan, ComparesSchedulesOnTheirBestLayouts) {
  const std::string result =
      output("--ranks 4 --ranks-per-node 4 --tokens 65536 --mask window:512,0 --layout auto --compare");
  EXPECT_THAT(result, AllOf(StartsWith("schedule "), HasSubstr(" contiguous "), Not(HasSubstr("refuses"))));
  EXPECT_EQ(count(result, "\nring "), 1U);
}

TEST(AnnulusPlan, FilesThatCannotBeReadOrWrittenAreNamed) {
  const TemporaryFolder folder;
  const std::string file = folder.write("c.toml", "[inter_node]\nbandwidth = 25e9\nlatncy = 1e-6\n");
  EXPECT_THAT(failure("--cluster " + file), mentions(file + ":3:", "inter_node.latncy", "latency"));
  EXPECT_THAT(failure("--cluster " + folder.file("none.toml")), HasSubstr("none.toml"));
  EXPECT_THAT(failure(small + "--json " + folder.file("no/such/plan.json")), HasSubstr("plan.json"));
  EXPECT_THAT(failure(small + "--html " + folder.file("no/such/plan.html")), HasSubstr("plan.html"));
}

}  // namespace
}  // namespace annulus::planner
