// Density, recall, entropy and gradients of attention against double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "attention/sparsity/sparse_case.hpp"

namespace annulus::test {
namespace {

using sparsity::HeadAudit;
using sparsity::LayerAudit;

using Selects = std::function<bool(std::int64_t head, std::int64_t query, std::int64_t key)>;

double dot(const double* a, const double* b, std::int64_t width) {
  return std::inner_product(a, a + width, b, 0.0);
}

/// The audit of all queries of the first sequence, from its definition.
LayerAudit exact_audit(const AttentionProblem& problem, const Mask& mask, int pictured_head,
                       const Selects& selects) {
  const std::int64_t tokens = problem.shape.tokens, group = problem.shape.heads / problem.shape.kv_heads,
                     block = (tokens + 31) / 32, blocks = (tokens + block - 1) / block;
  LayerAudit audit{.selects = true,
                   .heads = std::vector<HeadAudit>(static_cast<std::size_t>(problem.shape.heads)),
                   .pictured_head = pictured_head,
                   .block = block,
                   .weights = std::vector<double>(static_cast<std::size_t>(blocks * blocks)),
                   .gradients = std::vector<double>(static_cast<std::size_t>(blocks * blocks))};
  for (std::int64_t h = 0; h < problem.shape.heads; ++h) {
    HeadAudit& head = audit.heads[static_cast<std::size_t>(h)];
    double allowed = 0, selected = 0;
    for (std::int64_t q = 0; q < tokens; ++q) {
      std::vector<std::int64_t> keys;
      std::vector<double> scores, d_probabilities;
      for (std::int64_t k = 0; k < tokens; ++k) {
        if (!mask.rule().allows(q, k)) continue;
        const double score =
            problem.scale * dot(problem.q.row(0, h, q), problem.k.row(0, h / group, k), problem.q.width);
        keys.push_back(k);
        scores.push_back(problem.soft_cap > 0 ? problem.soft_cap * std::tanh(score / problem.soft_cap)
                                              : score);
        d_probabilities.push_back(
            dot(problem.d_out.row(0, h, q), problem.v.row(0, h / group, k), problem.v.width));
      }
      const bool has_sink = problem.sinks.heads > 0;
      const double sink = has_sink ? *problem.sinks.row(0, h, 0) : 0;
      double sum = has_sink ? std::exp(sink) : 0;
      for (const double score : scores) sum += std::exp(score);
      const auto plogp = [](double p) { return p > 0 ? -p * std::log(p) : 0; };
      double d = 0;
      head.entropy += has_sink ? plogp(std::exp(sink) / sum) : 0;
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const double p = std::exp(scores[i]) / sum;
        head.entropy += plogp(p);
        d += p * d_probabilities[i];
      }
      ++head.queries;
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const double p = std::exp(scores[i]) / sum,
                     share = problem.soft_cap > 0 ? scores[i] / problem.soft_cap : 0,
                     d_score = std::abs(p * (d_probabilities[i] - d) * (1 - share * share));
        const bool taken = selects(h, q, keys[i]);
        ++allowed;
        selected += taken ? 1 : 0;
        head.recall += taken ? p : 0;
        head.gradient += d_score;
        head.selected_gradient += taken ? d_score : 0;
        if (h != pictured_head) continue;
        const auto cell = static_cast<std::size_t>(q / block * blocks + keys[i] / block);
        audit.weights[cell] += p;
        audit.gradients[cell] += d_score;
      }
    }
    head.density = selected / allowed;
  }
  return audit;
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i], b[i], tolerance * std::max(1.0, std::abs(b[i]))) << what << ", number " << i;
}

void expect_near(LayerAudit found, LayerAudit exact, double tolerance = 1e-4) {
  ASSERT_EQ(found.heads.size(), exact.heads.size());
  for (std::size_t h = 0; h < found.heads.size(); ++h) {
    const auto numbers = [](HeadAudit head) {
      std::vector<double> all;
      head.visit([&](double& number) { all.push_back(number); });
      return all;
    };
    expect_near(numbers(found.heads[h]), numbers(exact.heads[h]), tolerance, "head " + std::to_string(h));
  }
  EXPECT_EQ(found.pictured_head, exact.pictured_head);
  EXPECT_EQ(found.block, exact.block);
  expect_near(found.weights, exact.weights, tolerance, "weights");
  expect_near(found.gradients, exact.gradients, tolerance, "gradients");
}

constexpr AttentionShape audited_shape{.tokens = 210, .head_dim = 16, .heads = 4, .kv_heads = 2};

/// The audit of layer 5 with all pairs, the same on all ranks.
template <class T>
LayerAudit audit_all_pairs(const AttentionProblem& problem, const Topology& topology, const Layout& layout,
                           std::int64_t queries = 0, std::int64_t number = 0) {
  std::optional<LayerAudit> first;
  std::mutex mutex;
  comm::run_loopback(topology, [&](comm::Communicator& communicator) {
    const TestExec exec = rank_instance();
    const RankRows<T> rows(exec, problem,
                           layout.shard(problem.shape.tokens, topology.ranks(), communicator.rank()));
    rows.fill(exec);
    const LayerAudit audit = audit_of<T>(exec, communicator, layout, problem.mask, rows, nullptr, 5,
                                         {.queries = queries, .number = number});
    const std::lock_guard lock(mutex);
    if (!first) first = audit;
    expect_near(audit, *first, 0);
  });
  return *first;
}

TEST(AttentionAudit, OfAllPairsIsExactUnderAnyMask) {
  for (const char* mask : {"causal", "window:40,0", "documents:0,9,10,150", "full", "window:20,30"}) {
    SCOPED_TRACE(mask);
    const auto problem = AttentionProblem::random(audited_shape, mask);
    LayerAudit exact = exact_audit(problem, problem.mask, 5 % 4, [](auto...) { return true; });
    expect_near(audit_all_pairs<float>(problem, Topology::uniform(1, 1), Layout()), exact);
    expect_near(audit_all_pairs<float>(problem, Topology::uniform(3, 3), Layout::parse("zigzag")), exact);
  }
}

TEST(AttentionAudit, KnowsSinksSoftCapsAndWiderKeys) {
  AttentionShape wide = audited_shape;
  wide.v_head_dim = 24;
  auto problem = AttentionProblem::random(wide, "causal", DType::bf16);
  problem.soft_cap = 1.5;
  problem.add_sinks(DType::bf16);
  expect_near(audit_all_pairs<bfloat16>(problem, Topology::uniform(4, 2), Layout::parse("striped")),
              exact_audit(problem, problem.mask, 1, [](auto...) { return true; }));
}

TEST(AttentionAudit, OfSelectionsIsExactOnAnyRanks) {
  for (const char* options :
       {"vertical-slash:recall=0.5,window=20", "vertical-slash:verticals=9,slashes=1,window=20,select=heads",
        "xattention:block=64,stride=8,threshold=0.4", "moba:block=64,top=2"}) {
    SCOPED_TRACE(options);
    const auto problem = AttentionProblem::random(audited_shape, "causal", DType::f32, 2.0);
    std::optional<LayerAudit> exact;
    for (const int ranks : {1, 3}) {
      const SparseResult sparse = run_sparse<float>(problem, {.options = options,
                                                              .topology = Topology::uniform(ranks, ranks),
                                                              .layout = Layout::parse("zigzag")});
      const std::int64_t group = audited_shape.heads / sparse.selection.lists;
      if (!exact)
        exact = exact_audit(problem, problem.mask, 0, [&](auto head, auto query, auto key) {
          return sparse.selection.allows(head / group, query, key);
        });
      expect_near(sparse.audit, *exact);
      EXPECT_LT(exact->heads[0].density, 1);
    }
  }
}

// Of 35 parts of six tokens each has one query, another one in another audit, and all ranks have the same.
TEST(AttentionAudit, SomeQueriesStandForAll) {
  const auto problem = AttentionProblem::random(audited_shape, "causal", DType::f32, 2.0);
  const LayerAudit exact = exact_audit(problem, problem.mask, 1, [](auto...) { return true; });
  double entropy = 0, gradient = 0;
  std::optional<double> other;
  constexpr int audits = 60;
  for (int number = 0; number < audits; ++number) {
    const LayerAudit some = audit_all_pairs<float>(problem, Topology::uniform(1, 1), Layout(), 35, number);
    if (number == 0)
      expect_near(audit_all_pairs<float>(problem, Topology::uniform(2, 2), Layout(), 35, 0), some, 1e-5);
    EXPECT_EQ(some.heads[1].queries, 35);
    EXPECT_NEAR(std::accumulate(some.weights.begin(), some.weights.end(), 0.0), 35, 1e-4);
    if (other) {
      EXPECT_NE(some.heads[1].entropy, *other);
    }
    other = some.heads[1].entropy;
    entropy += some.heads[1].entropy / 35 / audits;
    gradient += some.heads[1].gradient / 35 / audits;
  }
  EXPECT_NEAR(entropy, exact.heads[1].entropy / 210, 0.02 * entropy);
  EXPECT_NEAR(gradient, exact.heads[1].gradient / 210, 0.05 * gradient);
}

}  // namespace
}  // namespace annulus::test
