#include <annulus/config/renamed.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <annulus/config/old_keys.hpp>

#include "config/parse.hpp"
#include "config/rename_keys.hpp"
#include "support/error_text.hpp"

namespace annulus::config {
namespace {

using annulus::test::error_text;
using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Collects the warnings of a test.
class OldNames : public testing::Test {
 protected:
  OldNames() {
    set_old_name_warnings([this](const std::string& text) { warnings_.push_back(text); });
  }
  ~OldNames() override { set_old_name_warnings(nullptr); }

  std::vector<std::string> warnings_;
};

TEST_F(OldNames, AreNoLongerNewNamesOfAnything) {
  std::set<std::pair<Names, std::string_view>> old_names, new_names;
  for (const Renamed& row : renamed()) {
    EXPECT_TRUE(old_names.emplace(row.names, row.before).second) << row.before;
    EXPECT_TRUE(new_names.emplace(row.names, row.now).second) << row.now;
    EXPECT_EQ(new_name(row.names, row.before), row.now);
    EXPECT_EQ(new_name(row.names, row.now), std::nullopt) << row.now;
  }
  EXPECT_EQ(new_name(Names::options, "run.stall_limit"), std::nullopt);
}

TEST_F(OldNames, OfKeysBecomeNewOnesOnTheirLines) {
  toml::table table = parse("[inside]\nlatency = 1e-6\n[between]\n\nrails = 2\n", "c.toml");
  rename_keys(table, Names::cluster_file, "c.toml");
  EXPECT_EQ(table["intra_node"]["latency"].value<double>(), 1e-6);
  EXPECT_EQ(table["inter_node"]["nics_per_node"].value<int>(), 2);
  EXPECT_EQ(table["inter_node"]["nics_per_node"].node()->source().begin.line, 5);
  EXPECT_FALSE(table.contains("inside") || table.contains("between"));
  EXPECT_THAT(warnings_,
              ElementsAre("c.toml:1: inside is an old name: write intra_node",
                          "c.toml:3: between is an old name: write inter_node",
                          "c.toml:5: inter_node.rails is an old name: write inter_node.nics_per_node"));
  rename_keys(table, Names::cluster_file, "c.toml");
  EXPECT_EQ(warnings_.size(), 3U);
}

TEST_F(OldNames, WarnOncePerPlace) {
  for (int i = 0; i < 2; ++i) {
    toml::table table = parse("[run]\nstall_limit = 5\n", "run.toml");
    rename_keys(table, Names::configuration, "run.toml");
  }
  EXPECT_THAT(warnings_, ElementsAre("run.toml:2: run.stall_limit is an old name: write run.stall_timeout"));
}

TEST_F(OldNames, BesideNewOnesAreAnError) {
  toml::table table = parse("[run]\nstall_timeout = 6\nstall_limit = 5\n", "run.toml");
  EXPECT_THAT(error_text([&] { rename_keys(table, Names::configuration, "run.toml"); }),
              AllOf(HasSubstr("run.toml:3: run.stall_limit is the old name of run.stall_timeout"),
                    HasSubstr("run.toml:2"), HasSubstr("keep run.stall_timeout alone")));
}

TEST_F(OldNames, OfOtherFilesStay) {
  toml::table table = parse("inside = 3\n[run]\nrails = 2\n", "x.toml");
  rename_keys(table, Names::configuration, "x.toml");
  EXPECT_TRUE(table.contains("inside"));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST(OldKeys, StandBesideNewOnesWhereRowsSay) {
  json output = {{"cluster", {{"intra_node", 1}, {"nics_per_node", 2}}},
                 {"totals", {{{"intra_node", 3}, {"exposed_communication", 4}}}},
                 {"time", 5}};
  add_old_keys(output, "plan");
  const json expected = {
      {"cluster", {{"intra_node", 1}, {"inside", 1}, {"nics_per_node", 2}, {"rails", 2}}},
      {"totals", {{{"intra_node", 3}, {"intra", 3}, {"exposed_communication", 4}, {"exposed", 4}}}},
      {"time", 5}};
  EXPECT_EQ(output, expected);
  add_old_keys(output, "plan");
  EXPECT_EQ(output, expected);
}

TEST(OldKeys, OfFilesOfBeforeGetTheirNewOnes) {
  json file = {{"refused", json::array()},
               {"cases",
                {{{"forward",
                   {{"sent_bytes", {{"inside_nodes", 1}, {"between_nodes", 2}}},
                    {"predicted", {{"exposed_seconds", 3}}}}},
                  {"ranks", {{{"forward", {{"waiting_seconds", 4}}}}}}}}}};
  json written = {{"unsupported", json::array()},
                  {"cases",
                   {{{"forward",
                      {{"sent_bytes", {{"intra_node", 1}, {"inter_node", 2}}},
                       {"predicted", {{"exposed_communication_seconds", 3}}}}},
                     {"ranks", {{{"forward", {{"exposed_communication_seconds", 4}}}}}}}}}};
  add_new_keys(file, "attention");
  add_old_keys(written, "attention");
  EXPECT_EQ(file, written);
}

TEST(OldKeys, LeaveWhatHasTheirNameAlone) {
  json record = {{"waiting_seconds", 1}, {"exposed_communication_seconds", 2}};
  add_old_keys(record, "metrics");
  EXPECT_EQ(record.at("waiting_seconds"), 1);
}

}  // namespace
}  // namespace annulus::config
