// Training in the steady state allocates nothing inside a step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "train/tiny_run.hpp"

namespace annulus::train::test {
namespace {

constexpr int warm_up = 2;  // steps of each rank

/// What ranks, which are threads, allocate inside the region of a step after the first `warm_up` ones.
/// Checkpoints do not count, nor do requests for no bytes (Kokkos makes them when it launches teams on a
/// device). One object at a time.
class StepAllocations {
 public:
  StepAllocations() {
    namespace tools = Kokkos::Tools::Experimental;
    found().clear();
    steps_seen() = 0;
    tools::set_push_region_callback([](const char* name) {
      regions.emplace_back(name);
      if (regions.back() != "annulus::train::step") return;
      ++steps;
      const std::lock_guard lock(mutex());
      ++steps_seen();
    });
    tools::set_pop_region_callback([] { regions.pop_back(); });
    tools::set_allocate_data_callback([](Kokkos_Profiling_SpaceHandle, const char* label, const void*,
                                         std::uint64_t bytes) {
      if (bytes == 0 || steps <= warm_up || !inside("annulus::train::step") || inside("annulus::train::save"))
        return;
      const std::lock_guard lock(mutex());
      found().push_back(regions.back() + ": " + label + ": " + std::to_string(bytes));
    });
  }
  ~StepAllocations() {
    namespace tools = Kokkos::Tools::Experimental;
    tools::set_allocate_data_callback(nullptr);
    tools::set_push_region_callback(nullptr);
    tools::set_pop_region_callback(nullptr);
  }
  StepAllocations(const StepAllocations&) = delete;
  StepAllocations& operator=(const StepAllocations&) = delete;

  /// "region: label: bytes" of each.
  static std::vector<std::string>& found() {
    static std::vector<std::string> instance;
    return instance;
  }
  /// Of all ranks.
  static int& steps_seen() {
    static int instance = 0;
    return instance;
  }

 private:
  static bool inside(std::string_view name) {
    for (const std::string& region : regions)
      if (region == name) return true;
    return false;
  }
  static std::mutex& mutex() {
    static std::mutex instance;
    return instance;
  }
  static thread_local std::vector<std::string> regions;
  static thread_local int steps;
};
thread_local std::vector<std::string> StepAllocations::regions;
thread_local int StepAllocations::steps = 0;

TEST(Allocations, NoneInsideASteadyStep) {
  const TinyRun tiny;
  for (const std::string dtype : {"f32", "bf16"}) {
    for (const int ranks : {1, 2}) {
      Config config = tiny.config(dtype + std::to_string(ranks));
      config.attention.mask = "causal";  // documents bring new plans
      config.train.dtype = dtype;
      config.train.micro_batches = 2 * ranks;
      config.train.sequences_per_pass = ranks;
      const StepAllocations allocations;
      run(ranks, config);
      EXPECT_GE(StepAllocations::steps_seen(), ranks * (warm_up + 2));
      EXPECT_THAT(StepAllocations::found(), testing::IsEmpty()) << dtype << " on " << ranks << " ranks";
    }
  }
}

}  // namespace
}  // namespace annulus::train::test
