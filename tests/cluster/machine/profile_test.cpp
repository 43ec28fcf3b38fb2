#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "cluster/machine/nodes.hpp"
#include "cluster/machine/profile.hpp"
#include "support/error_text.hpp"

namespace annulus::machine {
namespace {

using test::error_text;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// The example of the format's documentation.
std::string documented() {
  std::ifstream in(ANNULUS_PROFILE_FORMAT);
  const std::string all((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::size_t begin = all.find("```toml\n") + 8;
  return all.substr(begin, all.find("```", begin) - begin);
}

std::string rejected(const std::string& text) {
  return error_text([&] { parse_profile(text, "p.toml"); });
}

TEST(Profile, TheDocumentedExampleIsRead) {
  const Profile profile = parse_profile(documented(), "example");
  EXPECT_EQ(profile.gpus, 8);
  EXPECT_THAT(profile.gpu, ElementsAre("H100"));
  EXPECT_EQ(profile.devices.size(), 8U);
  EXPECT_EQ(profile.nics, 8);
  EXPECT_EQ(profile.kind, NicKind::infiniband);
  EXPECT_EQ(profile.rate, 400e9);
  EXPECT_EQ(profile.fabric, Fabric::rails);
  EXPECT_THAT(profile.environment, ElementsAre(std::pair("NCCL_DEBUG", "WARN")));
}

TEST(Profile, TheDocumentedExampleIsTheNodeOfTheTests) {
  Profile profile = parse_profile(documented(), "example");
  EXPECT_THAT(texts(node_resources(node("h100-8"), profile).diagnostics),
              ElementsAre(HasSubstr("no interface bond0")));
  profile.interfaces = {"eno3"};
  EXPECT_THAT(texts(node_resources(node("h100-8"), profile).diagnostics), IsEmpty());
}

TEST(Profile, ThoseThatComeWithAnnulusAreRead) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(ANNULUS_PROFILES)) {
    if (entry.path().extension() != ".toml") continue;
    ++files;
    EXPECT_NO_THROW(read_profile(entry.path())) << entry.path();
  }
  EXPECT_GE(files, 6);
}

TEST(Profile, ErrorsNameLineAndKey) {
  EXPECT_THAT(rejected("[node]\ngpu_count = 8"), mentions("p.toml:2: unknown key node.gpu_count", "gpus"));
  EXPECT_THAT(rejected("[node]\ngpus = \"8\""), HasSubstr("p.toml:2: node.gpus must be an integer"));
  EXPECT_THAT(rejected("[network]\nkind = \"myrinet\""),
              mentions("kind is 'myrinet'", "infiniband, roce, ethernet"));
  EXPECT_THAT(rejected("[network]\nnics = 2\ndevices = [\"a\"]"),
              HasSubstr("lists 1 NICs, but network.nics is 2"));
  EXPECT_THAT(rejected("[network]\nkind = \"ethernet\"\ndevices = [\"a\"]"), HasSubstr("network.interfaces"));
  EXPECT_THAT(rejected("[node]\ngpus = 4\n[ranks]\nper_node = 8"),
              HasSubstr("ranks.per_node is 8, but node.gpus is 4"));
  EXPECT_THAT(rejected("[environment]\n\"A B\" = \"1\""), HasSubstr("cannot be the name of a variable"));
  EXPECT_THAT(rejected("[node]\ngpus_assumed = true"), HasSubstr("needs node.gpus"));
  EXPECT_THAT(rejected("[node"), HasSubstr("docs/formats/site-profile.md"));
  EXPECT_THAT(error_text([] { read_profile("/nowhere.toml"); }), HasSubstr("slurm/profiles"));
}

TEST(Profile, DifferencesAreToldWithRemedies) {
  const auto differences = [](const std::string& name, const std::string& text) {
    return texts(node_resources(node(name), parse_profile(text, "p")).diagnostics);
  };
  EXPECT_THAT(differences("gpu-4", "node.gpus = 8"),
              ElementsAre(HasSubstr("error: gpu-4: 4 GPUs, but the profile promises 8")));
  EXPECT_THAT(differences("gpu-4", "node.gpus = 2"),
              ElementsAre(HasSubstr("gpu-4: 4 GPUs, but the profile knows of 2")));
  EXPECT_THAT(differences("gpu-4", "node = {gpus = 4, gpu = [\"H100\", \"H200\"]}"),
              ElementsAre(mentions("error: gpu-4: GPU 0000:03:00.0 is a 'GA100", "promises H100 or H200")));
  EXPECT_THAT(differences("gpu-4", "network.devices = [\"mlx5_0\", \"mlx5_7\"]"),
              ElementsAre(mentions("error: gpu-4: there is no NIC mlx5_7", "mlx5_0, mlx5_1")));
  EXPECT_THAT(differences("cpu", "network.rate = 200e9"),
              ElementsAre(mentions("error: cpu: NIC mlx5_0 runs at 100 Gbit/s", "--exclude=cpu")));
  EXPECT_THAT(differences("cpu", "network = {devices = [\"mlx5_0\"], kind = \"roce\"}"),
              ElementsAre(HasSubstr("speaks infiniband, but the profile promises roce")));
  EXPECT_THAT(differences("cpu", "node = {cores = 256, sockets = 2}"),
              ElementsAre(HasSubstr("error: cpu: 128 cores, but the profile promises 256")));
  EXPECT_THAT(differences("cpu", "network = {nics = 2, kind = \"infiniband\"}"),
              ElementsAre(HasSubstr("1 NICs of the compute fabric, but the profile promises 2")));
}

TEST(Profile, GpusCanBeAssumed) {
  const Machine machine = node("cpu");
  const Profile profile = parse_profile(
      "[node]\ngpus = 4\ngpus_assumed = true\n[network]\nkind = \"ethernet\"\ninterfaces = [\"eno1\"]", "p");
  const NodeResources resources = node_resources(machine, profile);
  EXPECT_THAT(texts(resources.diagnostics), IsEmpty());
  EXPECT_EQ(resources.gpu_count, 4);
  EXPECT_THAT(nics(machine, resources), ElementsAre("eno1"));
  const auto ranks = assign_ranks(machine, resources, 4);
  EXPECT_EQ(list_text(cpus_of(machine, ranks[1])), "32-63");
  EXPECT_EQ(ranks[1].gpu, -1);
}

}  // namespace
}  // namespace annulus::machine
