#include "attention/executor/flagship_case.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <annulus/attention/plan/schedules.hpp>

#include "attention/executor/attention_case.hpp"
#include "support/attention/attention_kernels.hpp"
#include "support/attention/schedule_cases.hpp"
#include "support/error_text.hpp"

namespace annulus::test {

namespace {

using attention::Kernel;

/// Tensor cores multiply P and dS that are rounded to bf16 (tests/attention/kernels/tensor_cores_test.cpp);
/// the host multiplies in fp32. The LSE is fp32's everywhere.
constexpr double flagship_tolerance = on_host ? fp32_tolerance : 5e-3;

/// What automatic stands for, and, with few ranks, the tensor-core kernel of every GPU where it stands for
/// that of one generation.
std::vector<Kernel> kernels_on(int ranks) {
  std::vector<Kernel> kernels = {Kernel::automatic};
  if (ranks <= 2 && attention::kernel_for<TestExec, bfloat16>(128) == Kernel::hopper)
    kernels.push_back(Kernel::mma);
  return kernels;
}

}  // namespace

void check_schedules(const Nodes& nodes, int ranks, const std::set<int>& on_node, std::int64_t tokens) {
  const std::vector<std::string> layouts = {"contiguous", "zigzag", "striped", "block-striped:3", "balanced"};
  const std::vector<std::string> masks = {"causal",
                                          "full",
                                          "window:20,7",
                                          "documents:0,5,31,32,45",
                                          "causal+window:25,3",
                                          "dilated:6,5",
                                          "documents:0,40,41+window:9,0"};
  const std::vector<std::pair<int, int>> heads = {{8, 8}, {9, 3}, {8, 1}};
  std::size_t number = 0, served = 0;
  for (const int ranks_per_node : on_node) {
    const auto communicator = nodes(ranks_per_node);
    for (const std::string& schedule : schedules_on(ranks)) {
      const auto next = [&](const auto& of) { return of[number % of.size()]; };  // 210 combinations
      const bool helper = schedule == "helper-worker";
      const Layout layout = Layout::parse(helper ? "contiguous" : next(layouts));
      const auto [query, key] = next(heads);
      const auto sample = make_sample(helper ? "causal" : next(masks),
                                      {.tokens = tokens, .heads = query, .kv_heads = key, .batch = 2},
                                      next(std::vector{DType::f32, DType::bf16}));
      ++number;
      const auto problem = sample->problem(communicator->topology(), layout);
      if (const auto reason = documented_refusal(schedule, problem)) {
        EXPECT_THAT(error_text([&] { plan::make_plan(schedule, problem, plan::Pass::forward); }),
                    mentions(*reason));
        continue;
      }
      ++served;
      expect_correct(run(*communicator, *sample, schedule, layout),
                     fmt::format("{} {} {} of {} heads on {}", schedule, layout.to_string(),
                                 sample->mask.to_string(), query, communicator->topology().to_string()));
    }
  }
  EXPECT_GE(served, schedules_on(ranks).size() - (ranks % 2 == 0 ? 0 : 3));  // three refuse uneven nodes
}

void check_flagship(const Nodes& nodes, int ranks) {
  // On a device shards of eight ranks are longer than a tile. Every schedule serves these masks.
  constexpr std::int64_t tokens = on_host ? 261 : 533;
  const std::vector<std::string> masks = {"causal", "window:120,0", "documents:0,5,130,131,250"};
  const std::vector<std::string> layouts = {"zigzag", "striped", "contiguous", "block-striped:32",
                                            "balanced"};
  std::size_t number = 0, served = 0;
  // One node and two; many ranks, which may share a GPU, on two alone.
  std::set<int> on_node = {std::max(1, ranks / 2)};
  if (ranks <= 4) on_node.insert(ranks);
  for (const int ranks_per_node : on_node) {
    const auto communicator = nodes(ranks_per_node);
    for (const int head_dim : {64, 128}) {
      for (const std::string& mask : masks) {
        const auto sample = make_sample(
            mask, {.tokens = tokens, .heads = 8, .kv_heads = 2, .head_dim = head_dim}, DType::bf16);
        for (const std::string& schedule : schedules_on(ranks)) {
          const Layout layout =
              Layout::parse(schedule == "helper-worker" ? "contiguous" : layouts[number++ % layouts.size()]);
          if (documented_refusal(schedule, sample->problem(communicator->topology(), layout))) continue;
          ++served;
          for (const Kernel kernel : kernels_on(ranks)) {
            const std::string what = fmt::format(
                "{} {} {} head_dim {} kernel {} on {}, {}", schedule, layout.to_string(), mask, head_dim,
                name_of(kernel), communicator->topology().to_string(), communicator->description());
            const KernelsSeen kernels;
            executor::Settings settings;
            settings.kernel = kernel;
            const Errors errors = run(*communicator, *sample, schedule, layout, settings);
            expect_flagship_kernels(kernels, what);
            expect_correct(errors, what, flagship_tolerance);
            EXPECT_LE(errors.lse, fp32_tolerance) << what;
          }
        }
      }
    }
  }
  // On nodes of unequal size three schedules refuse.
  const std::size_t all = schedules_on(ranks).size() - (ranks % 2 == 0 || ranks == 1 ? 0 : 3);
  EXPECT_GE(served, 6 * all);
}

}  // namespace annulus::test
