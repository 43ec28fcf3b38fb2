#include <annulus/base/kokkos/start.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#ifdef KOKKOS_ENABLE_OPENMP
#include <omp.h>
#endif

#include "base/kokkos/execution/threads.hpp"
#include "support/error_text.hpp"

namespace annulus {
namespace {

/// Sets or unsets an environment variable for the life of the object.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    value ? setenv(name, value, 1) : unsetenv(name);
  }
  ~Environment() { old_ ? setenv(name_, old_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

TEST(Threads, EnvironmentDecides) {
  for (const auto& [text, threads] : {std::pair("1", 1), std::pair("7", 7), std::pair("3,2", 3)}) {
    const Environment variable("OMP_NUM_THREADS", text);
    EXPECT_EQ(host_threads(1), threads);
    EXPECT_EQ(host_threads(100), threads);
  }
}

TEST(Threads, BadEnvironmentIsAnError) {
  for (const char* text : {"0", "-2", "four", "4x", ",2", "99999999999"}) {
    const Environment variable("OMP_NUM_THREADS", text);
    EXPECT_THAT(error_text([] { host_threads(1); }),
                testing::HasSubstr(std::string("OMP_NUM_THREADS='") + text + "'"));
  }
}

TEST(Threads, RanksShareTheCores) {
  for (const char* text : {static_cast<const char*>(nullptr), ""}) {
    const Environment variable("OMP_NUM_THREADS", text);
    const int cores = static_cast<int>(available_cores().size());
    EXPECT_GE(host_threads(1), 1);
    EXPECT_LE(host_threads(1), cores);
    EXPECT_EQ(host_threads(2), std::max(1, host_threads(1) / 2));
    EXPECT_EQ(host_threads(cores), 1);
    EXPECT_EQ(host_threads(1000000), 1);  // fewer cores than ranks
  }
  EXPECT_THAT(error_text([] { host_threads(0); }), testing::HasSubstr("must be positive"));
}

TEST(Threads, BindingLimitsTheCores) {
  const std::vector<int> all = available_cores();
  ASSERT_FALSE(all.empty());
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(all.back()), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  const Environment variable("OMP_NUM_THREADS", nullptr);
  const std::vector<int> bound = available_cores();
  const int threads = host_threads(1);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(bound, std::vector<int>{all.back()});
  EXPECT_EQ(threads, 1);
}

TEST(Threads, KokkosSettingsCarryTheThreads) {
  const Environment omp("OMP_NUM_THREADS", "3");
  {
    const Environment none("KOKKOS_NUM_THREADS", nullptr);
    const Kokkos::InitializationSettings settings = kokkos_settings(1);
    EXPECT_TRUE(settings.has_num_threads());
    EXPECT_EQ(settings.get_num_threads(), 3);
    EXPECT_TRUE(settings.get_disable_warnings());
  }
  const Environment own("KOKKOS_NUM_THREADS", "2");
  EXPECT_EQ(kokkos_settings(1).get_num_threads(), 2);
}

TEST(Threads, AreNoMoreThanThereIsRoomFor) {
  const Environment kokkos("KOKKOS_NUM_THREADS", nullptr), omp("OMP_NUM_THREADS", "100000");
  std::string told;
  EXPECT_EQ(kokkos_settings(1, [&](const std::string& text) { told = text; }).get_num_threads(),
            most_host_threads);
  EXPECT_THAT(told, testing::HasSubstr("512 of 100000 threads"));
}

#ifdef KOKKOS_ENABLE_OPENMP
// What OMP_MAX_ACTIVE_LEVELS=0 and OMP_DYNAMIC=true do; program_test.cpp of train has the variables
// themselves.
TEST(Threads, AreThoseThatOpenMPGrants) {
  const Environment kokkos("KOKKOS_NUM_THREADS", nullptr), omp("OMP_NUM_THREADS", "3");
  const int levels = omp_get_max_active_levels();
  omp_set_max_active_levels(0);
  std::string told;
  const int granted = kokkos_settings(1, [&](const std::string& text) { told = text; }).get_num_threads();
  omp_set_max_active_levels(levels);
  EXPECT_EQ(granted, 1);
  EXPECT_THAT(told, testing::HasSubstr("1 of 3 threads"));

  told.clear();
  omp_set_dynamic(1);
  EXPECT_EQ(kokkos_settings(1, [&](const std::string& text) { told = text; }).get_num_threads(), 3);
  EXPECT_EQ(omp_get_dynamic(), 0);
  EXPECT_EQ(told, "");
}
#endif

TEST(Threads, WrongVariablesOfKokkosAreErrors) {
  const auto told = [](const char* name, const char* value) {
    const Environment variable(name, value);
    return error_text([] { kokkos_settings(1); });
  };
  const std::vector<std::pair<const char*, std::vector<const char*>>> wrong{
      {"KOKKOS_NUM_THREADS", {"0", "-1", "4x", "four", "", "99999999999"}},
      {"KOKKOS_DEVICE_ID", {"-1", "first", "0,1", ""}},
      {"KOKKOS_VISIBLE_DEVICES", {"0,-1", "0;1", "0,,1", ",", ""}},
      {"KOKKOS_MAP_DEVICE_ID_BY", {"rank", ""}},
      {"KOKKOS_DISABLE_WARNINGS", {"2", "on", ""}},
      {"KOKKOS_PRINT_CONFIGURATION", {"maybe"}},
      {"KOKKOS_TUNE_INTERNALS", {"01"}},
      {"KOKKOS_TOOLS_LIBS", {"/none/such.so"}},
      {"KOKKOS_PROFILE_LIBRARY", {"/none/such.so;/none/other.so"}}};
  for (const auto& [name, values] : wrong)
    for (const char* value : values)
      EXPECT_THAT(told(name, value), testing::HasSubstr(std::string(name) + "='" + value + "'"));
  for (const auto& [name, value] :
       {std::pair("KOKKOS_DISABLE_WARNINGS", "Yes"), std::pair("KOKKOS_NUM_THREADS", "2"),
        std::pair("KOKKOS_MAP_DEVICE_ID_BY", "random")})
    EXPECT_EQ(told(name, value), "no error");
  const Environment tool("KOKKOS_TOOLS_LIBS", "a.so");
  EXPECT_THAT(told("KOKKOS_PROFILE_LIBRARY", "b.so"), testing::HasSubstr("differ"));
}

}  // namespace
}  // namespace annulus
