// Schedules that are no rings against the double-precision reference, ranks as threads of this process.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include <annulus/comm/loopback.hpp>

#include "distributed/attention_case.hpp"

namespace annulus::test {
namespace {

Errors errors_of(int ranks, const Sample& sample, const std::string& schedule, const std::string& layout) {
  Errors errors;
  comm::run_loopback(Topology::uniform(ranks, 2), [&](comm::Communicator& communicator) {
    const Errors mine = run(communicator, sample, schedule, Layout::parse(layout));
    if (communicator.rank() == 0) errors = mine;  // the same on every rank
  });
  return errors;
}

void check(int ranks, const Sample& sample, const std::string& schedule, const std::string& layout) {
  expect_correct(errors_of(ranks, sample, schedule, layout),
                 fmt::format("{} {} {} {} on {} ranks", schedule, layout, sample.mask.to_string(),
                             name_of(sample.type), ranks));
}

const std::vector<std::string> exchange_masks = {"full", "causal", "window:20,7", "dilated:6,5",
                                                 "documents:0,5,31,32,45"};
const std::vector<std::string> exchange_causal_masks = {"causal", "window:9,0", "dilated:6,5",
                                                        "documents:0,5,31,32,45", "causal+window:25,3"};

struct Case {
  int ranks;
  std::string schedule;
};

void cross(const std::vector<Case>& cases, const std::vector<std::string>& masks,
           const std::vector<std::string>& layouts, const Shape& shape, DType type = DType::f32) {
  for (const std::string& mask : masks) {
    const auto sample = make_sample(mask, shape, type);
    for (const std::string& layout : layouts) {
      for (const Case& c : cases) check(c.ranks, *sample, c.schedule, layout);
    }
  }
}

TEST(DistributedExchanges, AllGather) {
  cross({{2, "all-gather"}, {5, "all-gather"}}, exchange_masks, {"contiguous", "zigzag"}, {.tokens = 61});
}

TEST(DistributedExchanges, HelperWorker) {
  cross({{2, "helper-worker"}, {3, "helper-worker"}, {4, "helper-worker"}, {7, "helper-worker"}},
        exchange_causal_masks, {"contiguous"}, {.tokens = 61});
}

TEST(DistributedExchanges, Ulysses) {
  cross({{2, "ulysses"}, {3, "ulysses"}, {4, "ulysses"}}, exchange_masks, {"contiguous", "striped"},
        {.tokens = 61});
}

TEST(DistributedExchanges, HeadsThatTheRanksDoNotDivide) {
  cross({{3, "ulysses"}, {4, "hybrid:4x1"}, {4, "hybrid:2x2"}}, {"causal"}, {"zigzag"},
        {.tokens = 45, .heads = 10, .kv_heads = 5, .head_dim = 24, .batch = 2});
  cross({{4, "ulysses"}}, {"causal"}, {"zigzag"}, {.tokens = 45, .heads = 6, .kv_heads = 1});
}

TEST(DistributedExchanges, Hybrid) {
  cross({{4, "hybrid:2x2"}, {4, "hybrid:2x2:context-first"}, {6, "hybrid:2x3"}}, exchange_masks,
        {"zigzag", "striped"}, {.tokens = 61});
}

TEST(DistributedExchanges, SixteenBitTypes) {
  for (const DType type : {DType::bf16, DType::f16}) {
    cross({{4, "all-gather"}, {4, "helper-worker"}, {4, "ulysses"}, {4, "hybrid:2x2"}}, {"causal"},
          {"contiguous"}, {.tokens = 61}, type);
  }
}

TEST(DistributedExchanges, RanksThatOwnNothing) {
  for (const std::int64_t tokens : {1, 3}) {
    cross({{4, "all-gather"}, {4, "helper-worker"}, {4, "ulysses"}, {4, "hybrid:2x2"}}, {"causal"},
          {"contiguous"}, {.tokens = tokens});
  }
}

}  // namespace
}  // namespace annulus::test
