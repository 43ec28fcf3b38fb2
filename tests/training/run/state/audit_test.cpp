// sparsity.audit_every: what attention.jsonl gets, on any ranks, in any layout, and when a run goes on.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

using nlohmann::json;

fs::path audit_file(const Config& config) {
  return fs::path(config.run.folder) / "attention.jsonl";
}

std::vector<json> audits(const Config& config) {
  return records(config, "attention.jsonl");
}

void expect_close(const json& a, const json& b, const std::string& where) {
  ASSERT_EQ(a.is_structured(), b.is_structured()) << where;
  if (!a.is_structured()) {
    if (!a.is_number()) {
      EXPECT_EQ(a, b) << where;
      return;
    }
    const double x = a.get<double>(), y = b.get<double>();
    EXPECT_NEAR(x, y, 2e-3 * std::max(1e-2, std::abs(y))) << where;
    return;
  }
  ASSERT_EQ(a.size(), b.size()) << where;
  for (const auto& item : a.items()) {
    if (a.is_object()) {
      ASSERT_TRUE(b.contains(item.key())) << where;
    }
    expect_close(item.value(), a.is_object() ? b.at(item.key()) : b.at(std::stoul(item.key())),
                 where + "/" + item.key());
  }
}

void expect_close(const Config& a, const Config& b) {
  const std::vector<json> of_a = audits(a), of_b = audits(b);
  ASSERT_EQ(of_a.size(), of_b.size());
  for (std::size_t i = 0; i < of_a.size(); ++i) expect_close(of_a[i], of_b[i], fmt::format("audit {}", i));
}

double mean(const json& list) {
  const auto values = list.get<std::vector<double>>();
  return std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}

double total(const json& rows) {
  double sum = 0;
  for (const json& row : rows) sum += mean(row) * double(row.size());
  return sum;
}

class Audits : public TinyTest {
 protected:
  Config config(const std::string& name, const std::vector<std::string>& sets = {}) const {
    return with(
        tiny_.config(name,
                     {"model.layers=3", "model.heads=4", "model.kv_heads=2", "data.sequence_length=150",
                      "train.steps=4", "attention.layout=block-striped:64",
                      "attention.sparsity=vertical-slash:verticals=6,slashes=1,window=20",
                      "sparsity.dense_layers=['1']", "sparsity.audit_every=2", "sparsity.audit_queries=0"}),
        sets);
  }
};

TEST_F(Audits, TellOfEveryHeadOfEveryLayer) {
  const Config one = config("one");
  run(1, one);
  const std::vector<json> found = audits(one);
  ASSERT_EQ(found.size(), 2u);
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].at("step"), 2 * (i + 1));
    EXPECT_EQ(found[i].at("queries"), 150);
    const json& layers = found[i].at("layers");
    ASSERT_EQ(layers.size(), 3u);
    double densities = 0, recalls = 0;
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const json& layer = layers[l];
      const bool selects = l != 1;
      EXPECT_EQ(layer.at("layer"), l);
      EXPECT_EQ(layer.at("selects"), selects);
      for (std::size_t head = 0; head < 4; ++head) {
        const auto of = [&](const char* key) { return layer.at(key).at(head).get<double>(); };
        EXPECT_GT(of("entropy"), 0);
        EXPECT_LT(of("entropy"), std::log(150));
        EXPECT_GT(of("gradient"), 0);
        if (selects) {
          EXPECT_LT(of("density"), 1);
          EXPECT_LT(of("recall"), 1);
          EXPECT_LT(of("gradient_recall"), 1);
          EXPECT_GT(of("recall"), 0.2);
          EXPECT_GT(of("gradient_recall"), 0.2);
        } else {
          EXPECT_EQ(of("density"), 1);
          EXPECT_EQ(of("recall"), 1);
          EXPECT_EQ(of("gradient_recall"), 1);
        }
      }
      densities += mean(layer.at("density")) / 3;
      recalls += selects ? mean(layer.at("recall")) / 2 : 0;
      const json& pattern = layer.at("pattern");
      EXPECT_EQ(pattern.at("head"), l);
      EXPECT_EQ(pattern.at("block"), 5);
      EXPECT_NEAR(total(pattern.at("weights")), 1, 1e-3);
      EXPECT_NEAR(total(pattern.at("gradients")), 1, 1e-3);
      EXPECT_EQ(pattern.at("weights").at(0).at(1), 0) << "keys behind the queries";
    }
    EXPECT_NEAR(densities, metric(one, "attention_density").at(2 * i + 1), 1e-9);
    for (const json& record : records(one)) {
      EXPECT_EQ(record.contains("attention_recall"), record.at("step").get<int>() % 2 == 0);
      if (record.at("step") == 2 * (i + 1)) {
        EXPECT_NEAR(record.at("attention_recall"), recalls, 1e-9);
      }
    }
  }
}

TEST_F(Audits, AreTheSameOnAnyRanksAndChangeNothing) {
  const Config one = config("one");
  run(1, one);
  int number = 0;
  for (const std::vector<std::string>& sets : std::vector<std::vector<std::string>>{
           {"attention.layout=zigzag", "memory.recompute=['full']"},
           {"attention.schedule=burst", "memory.recompute=['sequence-selective']", "parallel.zero=3"}}) {
    const Config several = config(fmt::format("several{}", number++), sets);
    run(3, several);
    expect_close(several, one);
  }
  const Config without = config("without", {"sparsity.audit_every=0"});
  expect_same_run(one, 1, without);
  EXPECT_FALSE(fs::exists(audit_file(without)));
}

TEST_F(Audits, OfDenseRunsFollowDocumentsAndWindows) {
  std::vector<std::int64_t> documents;
  for (std::int64_t length = 7; length < 140; length += 13) documents.push_back(length);
  const std::string shard = tiny_.shard("documents.h5", documents);
  const auto dense = [&](const std::string& name, const std::vector<std::string>& more) {
    return with(config(name, {"attention.sparsity=", "sparsity.dense_layers=[]", "attention.mask=documents",
                              "model.pattern='causal, window:39,0, causal'", "train.micro_batches=2",
                              "data.shards=" + shard}),
                more);
  };
  const Config one = dense("one", {"train.sequences_per_pass=2"}),
               balanced = dense("balanced", {"attention.layout=balanced"}),
               zigzag = dense("zigzag", {"attention.layout=zigzag"});
  run(1, one);
  run(3, zigzag);
  run(2, balanced);
  expect_close(zigzag, one);
  expect_close(balanced, one);
  // Two groups look at a sequence each.
  const Config groups = dense("groups", {"parallel.context=2", "train.micro_batches=1"});
  run(4, groups);
  EXPECT_EQ(audits(groups).at(0).at("queries"), 300);
  EXPECT_NEAR(total(audits(groups).at(0).at("layers").at(2).at("pattern").at("weights")), 1, 1e-3);
}

TEST_F(Audits, AreWrittenOnceWhenARunGoesOn) {
  const Config whole =
      config("whole", {"train.steps=6", "sparsity.audit_every=1", "sparsity.audit_queries=40"});
  const Config resumed = copy(whole, "resumed");
  run(2, whole);
  EXPECT_EQ(audits(whole).size(), 6u);
  EXPECT_EQ(audits(whole).front().at("queries"), 40);
  fs::create_directories(resumed.run.folder);
  fs::copy(audit_file(whole), audit_file(resumed));
  expect_same_when_resumed(whole, 2, resumed);
  EXPECT_EQ(audits(resumed), audits(whole));
}

}  // namespace
}  // namespace annulus::training::test
