// Real machines, recorded by hwloc. None is kept here: hwloc's own repository and many sites have some.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "cluster/machine/placement.hpp"

namespace annulus::machine {
namespace {

TEST(Recordings, EveryRankGetsItsOwnPartOfARealMachine) {
  const char* folder = std::getenv("ANNULUS_HWLOC_RECORDINGS");
  if (folder == nullptr || *folder == '\0')
    GTEST_SKIP() << "ANNULUS_HWLOC_RECORDINGS names no folder of files written by lstopo";
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".xml") continue;
    SCOPED_TRACE(entry.path());
    ++files;
    const Machine machine = read_machine(entry.path());
    const NodeResources resources = node_resources(machine, {});
    EXPECT_THAT(resources.diagnostics, testing::Each(testing::Field(&Diagnostic::error, false)));
    ASSERT_FALSE(machine.cores.empty());
    for (const Gpu& gpu : machine.gpus) EXPECT_FALSE(gpu.locality.bus.empty());
    const int ranks = resources.gpu_count > 0 ? resources.gpu_count : static_cast<int>(machine.numa.size());
    std::set<int> taken;
    for (const RankBinding& rank : assign_ranks(machine, resources, ranks)) {
      const std::vector<int> cpus = cpus_of(machine, rank);
      EXPECT_FALSE(cpus.empty());
      for (const int cpu : cpus) EXPECT_TRUE(rank.shared || taken.insert(cpu).second) << "processor " << cpu;
      EXPECT_EQ(rank.gpu < 0, resources.gpu_count == 0);
    }
  }
  EXPECT_GT(files, 0) << folder << " holds no file *.xml";
}

}  // namespace
}  // namespace annulus::machine
