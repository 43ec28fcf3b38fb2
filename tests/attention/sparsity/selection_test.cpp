// What is selected: budgets, ties, recall, and that neither layout nor ranks nor schedule change it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "attention/sparsity/double_precision.hpp"
#include "attention/sparsity/patterns/choose.hpp"
#include "attention/sparsity/patterns/window_scores.hpp"
#include "support/error_text.hpp"

namespace annulus::test {
namespace {

using Items = std::vector<std::int64_t>;

/// Values in memory of the execution space.
template <class T>
Kokkos::View<T*, TestExec> on_device(const std::vector<T>& values) {
  Kokkos::View<T*, TestExec> made("values", values.size());
  Kokkos::deep_copy(
      made, Kokkos::View<const T*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(values.data(), values.size()));
  return made;
}

/// The items whose bits are set in a list's words.
Items items_of(const Array2<std::uint32_t, TestExec>& bits, std::int64_t list) {
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), bits);
  Items found;
  for (std::int64_t i = 0; i < 32 * static_cast<std::int64_t>(host.extent(1)); ++i)
    if (sparsity::bit_of(&host(list, 0), i)) found.push_back(i);
  return found;
}

/// The masses of one list on the device, and what choose_largest is to set.
struct OneList {
  Kokkos::View<std::int64_t*, TestExec> masses;
  Array2<std::uint32_t, TestExec> bits;

  explicit OneList(const Items& of) : masses(on_device(of)), bits("bits", 1, (of.size() + 31) / 32) {}
  sparsity::Wanted<TestExec> wanted(const sparsity::Budget& budget) const {
    const auto items = static_cast<std::int64_t>(masses.extent(0));
    return {{masses.data(), items, items}, budget, bits};
  }
  Items chosen() const { return items_of(bits, 0); }
};

/// What choose_largest chooses of the masses of one list.
Items chosen(const Items& masses, const sparsity::Budget& budget) {
  const TestExec exec;
  const OneList list(masses);
  sparsity::choose_largest<TestExec>(exec, {list.wanted(budget)});
  exec.fence("annulus::test: chosen");
  return list.chosen();
}

/// What it chooses of two lists of other lengths at once.
std::pair<Items, Items> chosen(const Items& masses, const sparsity::Budget& budget, const Items& others,
                               const sparsity::Budget& their_budget) {
  const TestExec exec;
  const OneList list(masses), other(others);
  sparsity::choose_largest<TestExec>(exec, {list.wanted(budget), other.wanted(their_budget)});
  exec.fence("annulus::test: chosen");
  return {list.chosen(), other.chosen()};
}

/// What is to be chosen of a segment, by sorting.
Items literally_chosen(const Items& masses, std::int64_t first_wide, const sparsity::Segment& of,
                       const sparsity::Budget& budget) {
  Items order, found;
  for (std::int64_t i = of.first; i < of.end; ++i) order.push_back(i);
  for (std::int64_t i = of.first_wide; i < of.end_wide; ++i) order.push_back(i);
  const auto is_wide = [&](std::int64_t i) { return i >= first_wide; };
  const auto is_forced = [&](std::int64_t i) {
    return is_wide(i) ? i - of.first_wide < budget.forced_wide : i - of.first < budget.forced;
  };
  const auto mass = [&](std::int64_t i) { return masses[static_cast<std::size_t>(i)]; };
  const auto worth = [&](std::int64_t i) { return sparsity::worth_of_mass(mass(i), is_wide(i)); };
  std::ranges::stable_sort(order, [&](std::int64_t a, std::int64_t b) {
    const bool first = is_forced(a), second = is_forced(b);
    return first != second ? first : !first && worth(a) > worth(b);
  });
  std::int64_t total = 0;
  for (const std::int64_t i : order) total += mass(i);
  const double target = budget.recall > 0 ? std::ceil(budget.recall * static_cast<double>(total))
                                          : static_cast<double>(budget.count);
  double reached = 0;
  for (const std::int64_t i : order) {
    if (reached >= target && !is_forced(i)) break;
    found.push_back(i);
    reached += budget.recall > 0 ? static_cast<double>(mass(i)) : 1;
  }
  std::ranges::sort(found);
  return found;
}
Items literally_chosen(const Items& masses, const sparsity::Budget& budget) {
  const std::int64_t items = std::ssize(masses);
  return literally_chosen(masses, items, {0, items, items, items}, budget);
}

std::int64_t random_mass(std::mt19937& generator, int bits) {
  const std::uint64_t high = generator(), low = generator();
  return static_cast<std::int64_t>((high << 32 | low) >> (64 - bits));
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
  const std::int64_t largest = (std::int64_t{1} << 62) - 1;
  EXPECT_EQ(chosen({0, 3, largest, 0, largest - 1}, {.count = 3}), (std::vector<std::int64_t>{1, 2, 4}));
  EXPECT_EQ(chosen({0, 3, largest, 0}, {.recall = 1}), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(chosen({0, 3, 3, 0}, {.count = 2, .forced = 1}), (std::vector<std::int64_t>{0, 1}));
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
    const int mass_bits = 1 + static_cast<int>(generator() % 45);
    const auto random_masses = [&](std::size_t most) {
      Items masses(1 + generator() % most);
      for (auto& mass : masses) mass = random_mass(generator, mass_bits);
      return masses;
    };
    const Items masses = random_masses(sample % 10 == 0 ? 20000 : 150), others = random_masses(100);
    const auto budget = random_budget(masses, sample, generator),
               their_budget = random_budget(others, sample / 2, generator);
    const auto [first, second] = chosen(masses, budget, others, their_budget);
    EXPECT_EQ(first, literally_chosen(masses, budget)) << "sample " << sample;
    EXPECT_EQ(second, literally_chosen(others, their_budget)) << "sample " << sample;
  }
}

/// Lists of long, short and empty documents: keys and block distances of each compete for its budget.
TEST(Selection, OfSegmentsIsThatOfEach) {
  constexpr std::int64_t lists = 3, keys = 15000, all = 15300, stride = all + 7, words = (all + 31) / 32;
  std::mt19937 generator(5);
  for (int sample = 0; sample < 12; ++sample) {
    std::vector<Items> masses(lists, Items(all));
    Items stored(lists * stride);
    const int mass_bits = sample % 3 == 0 ? 2 : 40;  // many ties in every third
    for (std::int64_t list = 0; list < lists; ++list) {
      for (auto& mass : masses[list]) mass = random_mass(generator, mass_bits);
      std::ranges::copy(masses[list], stored.begin() + list * stride);
    }
    std::vector<sparsity::Segment> segments;
    for (std::int64_t key = 0, wide = keys; key < keys && wide < all;) {
      if (generator() % 4 == 0) segments.push_back({key, key, wide, wide});
      const std::int64_t most = sample % 2 == 0 ? 12000 : 300,
                         end = std::min<std::int64_t>(key + 1 + generator() % most, keys),
                         end_wide = std::min<std::int64_t>(wide + 1 + generator() % 90, all);
      segments.push_back({key, end, wide, end_wide});
      key = end + generator() % 3;  // some items are of no segment
      wide = end_wide;
    }
    sparsity::Budget budget{.forced = sample % 4, .forced_wide = sample % 3};
    if (sample % 4 < 2) {
      budget.recall = 0.3 + 0.05 * sample;
    } else {
      budget.count = 70 * sample;
    }
    const TestExec exec;
    const auto stored_on = on_device(stored);
    const auto segments_on = on_device(segments);
    const auto parts_on = on_device(sparsity::parts_of(segments));
    const Array2<std::uint32_t, TestExec> bits("bits", lists, words);
    sparsity::choose_largest<TestExec>(
        exec, {{{stored_on.data(), stride, all, keys},
                budget,
                bits,
                {segments_on.data(), std::ssize(segments), parts_on.data(), parts_on.extent_int(0)}}});
    exec.fence("annulus::test: chosen");
    for (std::int64_t list = 0; list < lists; ++list) {
      Items expected;
      for (const sparsity::Segment& of : segments)
        for (const std::int64_t item : literally_chosen(masses[list], keys, of, budget))
          expected.push_back(item);
      std::ranges::sort(expected);
      EXPECT_EQ(items_of(bits, list), expected) << "sample " << sample << ", list " << list;
    }
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
          "xattention:block=128,stride=8,threshold=0.6,select=kv-heads", "moba:block=64,top=2",
          "infllm-v2:block=64,top=2,sinks=1,window=70,stride=16"})
      expect_one_selection(problem, options, type);
  }
}

/// EXPECTs that columns increase, and that slashes do not hold all queries of one.
void expect_few_columns(const HostSelection& selection) {
  for (std::int64_t list = 0; list < selection.batch * selection.lists; ++list) {
    const std::vector<std::int64_t> columns = selection.columns_of(list);
    EXPECT_EQ(std::ranges::adjacent_find(columns, std::ranges::greater_equal()), columns.end());
    for (const std::int64_t key : columns) {
      bool held = true;
      for (std::int64_t d = 0; d <= (selection.tokens - 1) / 64 - key / 64; ++d)
        held = held && selection.slash(list, d);
      EXPECT_FALSE(held) << "list " << list << ", key " << key;
    }
  }
}

TEST(Selection, RecallsTheShareOfTheWindowWithAsFewAsCan) {
  const auto problem = AttentionProblem::random(shape, "causal", DType::f32, 2.0);
  for (const bool of_heads : {false, true})
    for (const double recall : {0.3, 0.6, 0.9})
      for (const std::int64_t window : {1, 40, 64, 130})
        expect_few_columns(expect_as_in_double_precision(
            problem, {.recall = recall, .window = window, .local = 0}, of_heads));
}

TEST(Selection, OfAJointBudgetTakesTheFewestOfBothThatHoldTheShareTogether) {
  const auto problem = AttentionProblem::random(shape, "causal", DType::f32, 0.5);
  for (const double recall : {0.3, 0.6, 0.9}) {
    for (const auto& [window, sinks, local] : {std::tuple{40, 0, 0}, {130, 3, 70}}) {
      const HostSelection selection = expect_as_in_double_precision(
          problem, {.recall = recall, .joint = true, .window = window, .sinks = sinks, .local = local},
          false);
      expect_few_columns(selection);
    }
  }
}

TEST(Selection, OfRecallOrThresholdOneTakesEveryCausalPair) {
  const auto problem = AttentionProblem::random(shape, "causal");
  for (const char* options : {"vertical-slash:recall=1", "xattention:threshold=1"}) {
    const SparseResult all = run_sparse<float>(problem, {.options = options});
    EXPECT_EQ(all.pairs.forward.selected,
              2 * shape.batch * shape.heads * shape.tokens * (shape.tokens + 1) / 2)
        << options << ", of two passes";
    EXPECT_EQ(differences(all.result, problem.reference(), fp32_tolerance), "") << options;
  }
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

// With fixed numbers to the byte, but for a few of each head; what documents take is bounded.
TEST(Selection, TakesThePredictedWorkspace) {
  constexpr MemoryKind kind = on_host ? MemoryKind::host : MemoryKind::device;
  constexpr auto workspace = static_cast<std::size_t>(MemoryCategory::workspace);
  for (const auto& [tokens, mask] :
       {std::pair{1000, "causal"}, {4200, "causal"}, {1000, "documents:0,300,421"}})
    for (const char* options :
         {"vertical-slash:verticals=9,slashes=2,window=128", "vertical-slash:verticals=9,slashes=2,window=1",
          "vertical-slash:verticals=9,slashes=2,window=1,select=heads",
          "vertical-slash:recall=0.02,budget=joint,window=128"}) {
      const auto problem = AttentionProblem::random(
          {.tokens = tokens, .head_dim = 16, .batch = 1, .heads = 4, .kv_heads = 2}, mask, DType::f32, 1.5);
      const bool packed = mask[0] == 'd';
      reset_memory_peaks();
      const std::int64_t before = memory_use(kind).current[workspace];
      selected(problem, {.options = options});
      const std::int64_t taken = memory_use(kind).peak[workspace] - before;
      const std::int64_t predicted =
          sparsity::selection_memory(sparsity::PatternOptions::parse(options), {.tokens = tokens,
                                                                                .rows = tokens,
                                                                                .batch = 1,
                                                                                .heads = 4,
                                                                                .kv_heads = 2,
                                                                                .head_dim = 16,
                                                                                .element = 4,
                                                                                .packed = packed})
              .workspace;
      EXPECT_LE(taken, predicted + 64) << options << ' ' << mask << ' ' << tokens;
      if (!packed) {
        EXPECT_GE(taken, predicted - 64) << options << ' ' << mask << ' ' << tokens;
      }
    }
}

}  // namespace
}  // namespace annulus::test
