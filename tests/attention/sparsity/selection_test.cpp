// What is selected: budgets, ties, recall, and that neither layout nor ranks nor schedule change it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "attention/sparsity/patterns/choose.hpp"
#include "attention/sparsity/patterns/window_scores.hpp"
#include "attention/sparsity/sparse_case.hpp"
#include "support/error_text.hpp"

namespace annulus::test {
namespace {

using Items = std::vector<std::int64_t>;

/// The masses of one list on the device, and what choose_largest is to set.
struct OneList {
  Array1<std::int64_t, TestExec> masses;
  Array2<std::uint32_t, TestExec> bits;

  explicit OneList(const Items& of) : masses("masses", of.size()), bits("bits", 1, (of.size() + 31) / 32) {
    Kokkos::deep_copy(masses, Kokkos::View<const std::int64_t*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(
                                  of.data(), of.size()));
  }
  sparsity::Wanted<TestExec> wanted(const sparsity::Budget& budget, int mass_bits) const {
    const auto items = static_cast<std::int64_t>(masses.extent(0));
    return {{masses.data(), items, items, mass_bits}, budget, bits};
  }
  Items chosen() const {
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), bits);
    Items found;
    for (std::int64_t i = 0; i < 32 * static_cast<std::int64_t>(host.extent(1)); ++i)
      if (sparsity::bit_of(host.data(), i)) found.push_back(i);
    return found;
  }
};

/// What choose_largest chooses of the masses of one list.
Items chosen(const Items& masses, const sparsity::Budget& budget) {
  const TestExec exec;
  const OneList list(masses);
  sparsity::choose_largest<TestExec>(exec, {list.wanted(budget, 63)});
  exec.fence("annulus::test: chosen");
  return list.chosen();
}

/// What it chooses of two lists of other lengths at once, whose masses are below 2^`mass_bits`.
std::pair<Items, Items> chosen(const Items& masses, const sparsity::Budget& budget, const Items& others,
                               const sparsity::Budget& their_budget, int mass_bits) {
  const TestExec exec;
  const OneList list(masses), other(others);
  sparsity::choose_largest<TestExec>(exec,
                                     {list.wanted(budget, mass_bits), other.wanted(their_budget, mass_bits)});
  exec.fence("annulus::test: chosen");
  return {list.chosen(), other.chosen()};
}

/// What is to be chosen, by sorting.
std::vector<std::int64_t> literally_chosen(const std::vector<std::int64_t>& masses,
                                           const sparsity::Budget& budget) {
  std::vector<std::int64_t> order(masses.size()), found;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    const bool first = a < budget.forced, second = b < budget.forced;
    return first != second ? first : !first && masses[a] > masses[b];
  });
  const std::int64_t total = std::accumulate(masses.begin(), masses.end(), std::int64_t{0});
  const double target = budget.recall > 0 ? std::ceil(budget.recall * static_cast<double>(total))
                                          : static_cast<double>(budget.count);
  double reached = 0;
  for (const std::int64_t i : order) {
    if (reached >= target && i >= budget.forced) break;
    found.push_back(i);
    reached += budget.recall > 0 ? static_cast<double>(masses[i]) : 1;
  }
  std::ranges::sort(found);
  return found;
}

/// A budget of a recall or a count, for `sample`.
sparsity::Budget random_budget(const Items& masses, int sample, std::mt19937& generator) {
  sparsity::Budget budget{.forced = static_cast<std::int64_t>(generator() % 4)};
  if (sample % 2 == 0) {
    budget.recall = 0.01 + 0.98 * static_cast<double>(generator() % 1000) / 1000;
  } else {
    budget.count = static_cast<std::int64_t>(generator() % (masses.size() + 1));
  }
  budget.forced = std::min<std::int64_t>(budget.forced, std::ssize(masses));
  return budget;
}

TEST(Selection, TakesTheFewestAndOfEqualOnesTheFirst) {
  EXPECT_EQ(chosen({5, 7, 7, 7, 1}, {.count = 2}), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(chosen({5, 7, 7, 7, 1}, {.count = 3, .forced = 1}), (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(chosen({5, 7, 7, 7, 1}, {.count = 0}), std::vector<std::int64_t>());
  EXPECT_EQ(chosen({0, 0, 0}, {.count = 2}), (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(chosen({0, 0, 0}, {.recall = 0.9}), std::vector<std::int64_t>());
  EXPECT_EQ(chosen({1, 1, 8}, {.recall = 0.8}), (std::vector<std::int64_t>{2}));
  EXPECT_EQ(chosen({1, 1, 8}, {.recall = 0.81}), (std::vector<std::int64_t>{0, 2}));
  std::mt19937 generator(3);
  for (int sample = 0; sample < 300; ++sample) {
    // Some are so long that several teams share them.
    std::vector<std::int64_t> masses(1 + generator() % (sample % 30 < 2 ? 20000 : 150));
    const unsigned spread = sample % 3 == 0 ? 4 : 1u << 20;  // many ties in every third
    for (auto& mass : masses) mass = generator() % spread;
    const auto budget = random_budget(masses, sample, generator);
    EXPECT_EQ(chosen(masses, budget), literally_chosen(masses, budget))
        << "sample " << sample << ", recall " << budget.recall << ", count " << budget.count;
  }
}

TEST(Selection, OfTwoSetsAtOnceIsThatOfEach) {
  std::mt19937 generator(4);
  for (int sample = 0; sample < 100; ++sample) {
    const int mass_bits = 1 + static_cast<int>(generator() % 30);
    const auto random_masses = [&](std::size_t most) {
      Items masses(1 + generator() % most);
      for (auto& mass : masses) mass = static_cast<std::int64_t>(generator() >> (32 - mass_bits));
      return masses;
    };
    const Items masses = random_masses(sample % 10 == 0 ? 20000 : 150), others = random_masses(100);
    const auto budget = random_budget(masses, sample, generator),
               their_budget = random_budget(others, sample / 2, generator);
    const auto [first, second] = chosen(masses, budget, others, their_budget, mass_bits);
    EXPECT_EQ(first, literally_chosen(masses, budget)) << "sample " << sample;
    EXPECT_EQ(second, literally_chosen(others, their_budget)) << "sample " << sample;
  }
}

constexpr AttentionShape shape{.tokens = 333, .head_dim = 16, .batch = 2, .heads = 4, .kv_heads = 2};

TEST(Selection, IsTheSameForEveryLayoutScheduleAndNumberOfRanks) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const auto problem = AttentionProblem::random(shape, "causal", type, 2.0);
    for (const char* options :
         {"vertical-slash:recall=0.6,window=40,sinks=3",
          "vertical-slash:recall=0.8,window=100,select=heads,local=0",
          "vertical-slash:verticals=12,slashes=2,local=0", "xattention:block=64,stride=16,threshold=0.7",
          "xattention:block=128,stride=8,threshold=0.6,select=kv-heads"}) {
      const HostSelection one = selected(problem, {.options = options}, type);
      for (const auto& [ranks, schedule, layout] : {std::tuple{2, "burst", "block-striped:64"},
                                                    {3, "ring", "zigzag"},
                                                    {4, "ulysses", "contiguous"},
                                                    {7, "all-gather", "striped"}}) {
        if (schedule == std::string("ulysses") && type == DType::bf16) continue;
        EXPECT_EQ(selected(problem,
                           {options, Topology::uniform(ranks, ranks), Layout::parse(layout), schedule}, type),
                  one)
            << options << ", " << ranks << " ranks, " << schedule << ", " << layout;
      }
    }
  }
}

/// Probabilities of the window in double precision, as masses of keys and block distances of a list.
struct ExactMasses {
  std::vector<double> keys, slashes;
  double all = 0;
  struct Pair {
    std::int64_t key, distance;  // of blocks
    double mass;
  };
  std::vector<Pair> pairs;

  ExactMasses(const AttentionProblem& problem, std::int64_t window, std::int64_t list, std::int64_t lists)
      : keys(static_cast<std::size_t>(problem.shape.tokens)),
        slashes(static_cast<std::size_t>((problem.shape.tokens + 63) / 64)) {
    const auto& [tokens, width, batch, heads, kv_heads, v_width] = problem.shape;
    const std::int64_t b = list / lists, group = heads / lists;
    for (std::int64_t head = list % lists * group; head < (list % lists + 1) * group; ++head) {
      for (std::int64_t q = tokens - window; q < tokens; ++q) {
        std::vector<double> p(static_cast<std::size_t>(q + 1));
        double highest = -infinity, sum = 0;
        for (std::int64_t k = 0; k <= q; ++k) {
          for (int c = 0; c < width; ++c)
            p[k] += problem.scale * problem.q.row(b, head, q)[c] *
                    problem.k.row(b, head / (heads / kv_heads), k)[c];
          highest = std::max(highest, p[k]);
        }
        for (double& value : p) sum += value = std::exp(value - highest);
        for (std::int64_t k = 0; k <= q; ++k) {
          keys[k] += p[k] / sum;
          slashes[q / 64 - k / 64] += p[k] / sum;
          pairs.push_back({k, q / 64 - k / 64, p[k] / sum});
        }
        all += 1;
      }
    }
  }

  /// Masses to which each pair adds for that of the two alone which is worth more.
  ExactMasses once() const {
    ExactMasses assigned = *this;
    std::ranges::fill(assigned.keys, 0);
    std::ranges::fill(assigned.slashes, 0);
    for (const auto& [key, distance, mass] : pairs) {
      if (slashes[distance] / 64 >= keys[key])
        assigned.slashes[distance] += mass;
      else
        assigned.keys[key] += mass;
    }
    return assigned;
  }
};

/// Whether slashes hold all queries from a key on.
bool is_covered(const HostSelection& selection, std::int64_t list, std::int64_t key, std::int64_t blocks) {
  bool covered = true;
  for (std::int64_t d = 0; d < blocks - key / 64; ++d) covered = covered && selection.slash(list, d);
  return covered;
}

TEST(Selection, RecallsTheShareOfTheWindowWithAsFewAsCan) {
  const auto problem = AttentionProblem::random(shape, "causal", DType::f32, 2.0);
  for (const bool of_heads : {false, true}) {
    for (const double recall : {0.3, 0.6, 0.9}) {
      for (const std::int64_t window : {1, 40, 64, 130}) {
        const std::string options = fmt::format("vertical-slash:recall={},window={},local=0,select={}",
                                                recall, window, of_heads ? "heads" : "kv-heads");
        const HostSelection selection = selected(problem, {.options = options}, DType::f32);
        for (std::int64_t list = 0; list < selection.batch * selection.lists; ++list) {
          const ExactMasses masses(problem, window, list, selection.lists);
          const double asked = recall * masses.all, rounding = 1e-5 * masses.all;
          double slashes = 0, smallest = infinity;
          for (std::int64_t d = 0; d < std::ssize(masses.slashes); ++d) {
            if (!selection.slash(list, d)) continue;
            slashes += masses.slashes[d];
            smallest = std::min(smallest, masses.slashes[d]);
          }
          EXPECT_GE(slashes, asked - rounding) << options;
          EXPECT_LT(slashes - smallest, asked + rounding) << options << ": one slash too many";
          // Verticals that slashes hold are not listed; all others of the fewest that recall the share are.
          std::vector<std::int64_t> order(masses.keys.size());
          std::iota(order.begin(), order.end(), 0);
          std::ranges::sort(order, [&](auto a, auto b) { return masses.keys[a] > masses.keys[b]; });
          double verticals = 0;
          std::vector<std::int64_t> expected;
          for (const std::int64_t key : order) {
            if (verticals >= asked) break;
            verticals += masses.keys[key];
            if (!is_covered(selection, list, key, std::ssize(masses.slashes))) expected.push_back(key);
          }
          std::ranges::sort(expected);
          EXPECT_EQ(selection.columns_of(list), expected) << options;
        }
      }
    }
  }
}

TEST(Selection, OfAJointBudgetTakesTheFewestOfBothThatHoldTheShareTogether) {
  const auto problem = AttentionProblem::random(shape, "causal", DType::f32, 0.5);
  int of_both = 0;
  for (const double recall : {0.3, 0.6, 0.9}) {
    for (const auto& [window, sinks, local] : {std::tuple{40, 0, 0}, {130, 3, 70}}) {
      const std::string options = fmt::format(
          "vertical-slash:budget=joint,recall={},window={},sinks={},local={}", recall, window, sinks, local);
      const HostSelection selection =
          selected(problem, {.options = options, .topology = Topology::uniform(2, 2)}, DType::f32);
      for (std::int64_t list = 0; list < selection.batch * selection.lists; ++list) {
        const ExactMasses masses = ExactMasses(problem, window, list, selection.lists).once();
        const std::int64_t keys = std::ssize(masses.keys), blocks = std::ssize(masses.slashes);
        const auto is_slash = [&](std::int64_t item) { return item >= keys; };
        const auto mass = [&](std::int64_t item) {
          return is_slash(item) ? masses.slashes[item - keys] : masses.keys[item];
        };
        const auto worth = [&](std::int64_t item) { return mass(item) / (is_slash(item) ? 64 : 1); };
        const auto forced = [&](std::int64_t item) {
          return is_slash(item) ? (item - keys) * 64 < local + 63 && local > 0 : item < sinks;
        };
        std::vector<std::int64_t> order(keys + blocks);
        std::iota(order.begin(), order.end(), 0);
        std::ranges::stable_sort(
            order, [&](auto a, auto b) { return forced(a) != forced(b) ? forced(a) : worth(a) > worth(b); });
        double reached = 0;
        std::vector<std::int64_t> columns, slashes, found;
        for (const std::int64_t item : order) {
          if (reached >= recall * masses.all && !forced(item)) break;
          reached += mass(item);
          (is_slash(item) ? slashes : columns).push_back(is_slash(item) ? item - keys : item);
        }
        for (std::int64_t d = 0; d < blocks; ++d)
          if (selection.slash(list, d)) found.push_back(d);
        std::ranges::sort(slashes);
        std::ranges::sort(columns);
        EXPECT_EQ(found, slashes) << options;
        std::erase_if(columns, [&](auto key) { return is_covered(selection, list, key, blocks); });
        EXPECT_EQ(selection.columns_of(list), columns) << options;
        of_both += !columns.empty() && std::ssize(slashes) > (local > 0 ? 3 : 0) ? 1 : 0;
        double held = 0;
        for (const auto& [key, distance, of_pair] : masses.pairs) {
          const bool vertical = std::ranges::binary_search(columns, key);
          held += vertical || selection.slash(list, distance) ? of_pair : 0;
        }
        EXPECT_GE(held, (recall - 1e-5) * masses.all) << options;
      }
    }
  }
  EXPECT_GT(of_both, 0) << "no budget was shared";
}

TEST(Selection, OfRecallOneTakesEveryCausalPair) {
  const auto problem = AttentionProblem::random(shape, "causal");
  const SparseResult all = run_sparse<float>(problem, {.options = "vertical-slash:recall=1"});
  EXPECT_EQ(all.pairs.forward.selected, 2 * shape.batch * shape.heads * shape.tokens * (shape.tokens + 1) / 2)
      << "of two passes";
  EXPECT_EQ(differences(all.result, problem.reference(), fp32_tolerance), "");
}

TEST(Selection, SaysWhichMasksItCannotJoin) {
  const auto error = [](const char* mask, const char* options = "vertical-slash") {
    return error_text([&] {
      (void)run_sparse<float>(AttentionProblem::random({.tokens = 100}, mask),
                              {.options = options, .topology = Topology::uniform(2, 2)});
    });
  };
  EXPECT_THAT(error("documents:0,50", "vertical-slash:window=9,local=0"),
              testing::HasSubstr("use local=1 or more"));
  EXPECT_THAT(error("causal+window:9,0"),
              testing::HasSubstr("selects from the masks 'causal' and 'documents'"));
  EXPECT_THAT(error("full"), testing::HasSubstr("use one of them"));
  EXPECT_THAT(error("causal", "vertical-slash:window=101"), testing::HasSubstr("longer than the sequence"));
}

TEST(Masses, UnitsAreFloorsOfProbabilities) {
  std::mt19937 random(3);
  std::vector<float> probabilities{0.0f, 1.0f, 0.5f, 0x1p-44f, 0x1p-45f, 0x1.8p-44f, 0x1p-126f, 0x1p-140f};
  for (int i = 0; i < 20000; ++i)
    probabilities.push_back(std::exp(-std::uniform_real_distribution<float>(0, 90)(random)));
  for (const int exponent : {sparsity::unit_exponent(1), sparsity::unit_exponent(std::int64_t{1} << 20),
                             sparsity::unit_exponent(std::int64_t{1} << 40)})
    for (const float p : probabilities)
      ASSERT_EQ(sparsity::scaled_floor(p, exponent), std::floor(std::ldexp(static_cast<double>(p), exponent)))
          << p << " · 2^" << exponent;
  EXPECT_EQ(sparsity::unit_exponent(1), 44);
  EXPECT_EQ(sparsity::unit_exponent(std::int64_t{1} << 20), 41);
}

}  // namespace
}  // namespace annulus::test
