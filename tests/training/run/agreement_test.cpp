// Ranks that were started with other programs, configurations, data or machines.

#include <set>

#include "training/data/shard.hpp"
#include "training/io/atomic.hpp"
#include "training/run/config/agreement.hpp"
#include "training/run/config/config_table.hpp"
#include "training/run/opens.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

using testing::Pair;
using testing::UnorderedElementsAre;

class Agreement : public TinyTest {
 protected:
  /// What all ranks are told when `change` is done to the configuration of rank 1.
  std::vector<std::string> with_other(int ranks, const Config& config, auto change) const {
    return messages(ranks, [&](int rank) {
      Config mine = config;
      if (rank == 1) change(mine);
      return std::pair(mine, Hooks());
    });
  }
};

// So that a new key cannot be forgotten.
TEST_F(Agreement, EveryKeyButPathsIsCompared) {
  Config config = tiny_.config("run");
  const std::uint64_t all = config_facts(config).fingerprint();
  for (const Key& key : config_table()) {
    Config other = config;
    std::visit(
        [&](auto* value) {
          using T = std::remove_pointer_t<decltype(value)>;
          if constexpr (std::is_same_v<T, std::string>)
            *value = std::string(key.name) == "run.device"       ? "auto"
                     : std::string(key.name) == "attention.mask" ? "window:7,0"
                                                                 : *value + "x";
          else if constexpr (std::is_same_v<T, std::vector<std::string>>)
            value->push_back("more");
          else if constexpr (std::is_same_v<T, std::vector<Config::DataSet>>)
            value->push_back({"more", {"more"}});
          else if constexpr (std::is_same_v<T, bool>)
            *value = !*value;
          else if constexpr (std::is_enum_v<T>)
            *value = static_cast<T>(1);
          else
            *value += 1;
        },
        key.reference(other));
    const bool path =
        std::set<std::string>{"run.folder", "data.shards", "attention.cluster"}.contains(key.name);
    EXPECT_EQ(config_facts(other).fingerprint() == all, path) << key.name;
  }
}

TEST_F(Agreement, AnotherClusterFileOrBlockListIsNamed) {
  Config config = tiny_.config("run", {"attention.schedule=auto"});
  for (const char* name : {"one.toml", "other.toml"})
    io::write_text_atomically(tiny_.file(name), std::string("[inter_node]\nbandwidth = 1e6\nlatency = ") +
                                                    (name[1] == 'n' ? "1e-3\n" : "2e-3\n"));
  config.attention.cluster = tiny_.file("one.toml").string();
  EXPECT_THAT(
      with_other(2, config, [&](Config& c) { c.attention.cluster = tiny_.file("other.toml").string(); }),
      Each(mentions("about the contents of attention.cluster: crc32:", "the same file")));

  const auto list = [&](const std::string& name, const char* last) {
    io::write_text_atomically(tiny_.file(name),
                              "annulus-block-mask 1\nblocks 2\n0: 0\n1: " + std::string(last) + "\nend\n");
    return "causal+blocks:25," + tiny_.file(name).string();
  };
  for (const int context : {0, 1}) {
    SCOPED_TRACE(context);
    Config blocks = tiny_.config("blocks");
    blocks.parallel.context = context;
    blocks.attention.mask = list("one", "0-1");
    EXPECT_THAT(with_other(2, blocks, [&](Config& c) { c.attention.mask = list("other", "1"); }),
                Each(mentions("ranks disagree about ", "block", " on rank 1, ")));
  }
}

/// Sequences whose documents differ bring new masks and plans, but no new look at the block list.
TEST_F(Agreement, EveryRankReadsClusterAndBlockListOnce) {
  Config config =
      tiny_.config("run", {"data.sequence_length=700", "train.micro_batches=4", "attention.schedule=auto"});
  // A folder per rank: the kernel reports two ranks that open one file at the same time as one event.
  const auto folder = [&](int rank) { return tiny_.file("inputs-" + std::to_string(rank)); };
  for (int rank = 0; rank < 2; ++rank) {
    fs::create_directory(folder(rank));
    io::write_text_atomically(folder(rank) / "cluster.toml",
                              "[inter_node]\nbandwidth = 1e6\nlatency = 1e-3\n");
    io::write_text_atomically(folder(rank) / "list", "annulus-block-mask 1\nblocks 2\n0: 0\n1: 0-1\nend\n");
  }
  Opens of_rank_0(folder(0)), of_rank_1(folder(1));
  EXPECT_THAT(messages(2,
                       [&](int rank) {
                         Config mine = config;
                         mine.attention.cluster = (folder(rank) / "cluster.toml").string();
                         mine.attention.mask = "documents+blocks:350," + (folder(rank) / "list").string();
                         return std::pair(mine, Hooks());
                       }),
              Each(std::string("no error")));
  for (Opens* opens : {&of_rank_0, &of_rank_1})
    EXPECT_THAT(opens->count(), UnorderedElementsAre(Pair("cluster.toml", 1), Pair("list", 1)));
}

TEST_F(Agreement, AFileThatOneRankLacksEndsAll) {
  Config config = tiny_.config("run", {"attention.schedule=auto"});
  config.attention.cluster = tiny_.file("cluster.toml").string();
  io::write_text_atomically(config.attention.cluster, "");
  EXPECT_THAT(with_other(3, config, [&](Config& c) { c.attention.cluster = tiny_.file("none").string(); }),
              Each(mentions("attention.cluster: ", tiny_.file("none").string(), "check the path",
                            "(found on rank 1)")));
  EXPECT_FALSE(fs::exists(config.run.folder));
}

TEST_F(Agreement, OtherShardsAreNamedAndCopiesAreNot) {
  const Config config = tiny_.config("run");
  fs::copy(tiny_.file("shards"), tiny_.file("copies"));
  fs::copy(tiny_.file("shards"), tiny_.file("fewer"));
  const auto name = [&](const char* folder) {
    return [&, folder](Config& c) { c.data.shards = {tiny_.file(folder).string()}; };
  };
  fs::remove(data::find_shards(std::array{tiny_.file("fewer")}).back());
  EXPECT_THAT(with_other(3, config, name("fewer")),
              Each(mentions("the data: ", " on rank 1, ", " on ranks 0, 2; ")));
  EXPECT_FALSE(fs::exists(config.run.folder));
  EXPECT_THAT(with_other(3, config, name("copies")), Each(std::string("no error")));
}

TEST_F(Agreement, AStaleProgramOnOneNodeOfManyIsNamed) {
  const Config config = tiny_.config("run");
  const auto texts = messages(
      6,
      [&](int rank) {
        Hooks hooks;
        if (rank == 2 || rank == 3) {
          hooks.program = comm::Facts();
          hooks.program.add("the program's version", "0.0.9",
                            "start the same build of the program on every rank");
        }
        return std::pair(config, hooks);
      },
      2);
  EXPECT_THAT(texts,
              Each(mentions("the program's version: 0.0.9 on ranks 2, 3, ", " on ranks 0, 1, 4, 5; ")));
}

TEST_F(Agreement, OtherHardwareIsAnErrorUnlessItIsAllowed) {
  for (const bool mixed : {false, true}) {
    Config config = tiny_.config("run");
    config.parallel.mixed_hardware = mixed;
    const auto texts = messages(3, [&](int rank) {
      Hooks hooks;
      hooks.hardware = comm::Facts();
      hooks.hardware->add("the GPU model", rank == 1 ? "NVIDIA A100" : "NVIDIA H100",
                          "start the ranks on machines of one kind, or set parallel.mixed_hardware = true");
      return std::pair(config, hooks);
    });
    if (mixed)
      EXPECT_THAT(texts, Each(std::string("no error")));
    else
      EXPECT_THAT(texts,
                  Each(mentions("about the GPU model: NVIDIA A100 on rank 1, NVIDIA H100 on ranks 0, 2",
                                "parallel.mixed_hardware")));
  }
  const comm::Facts facts = hardware_of(!on_host, Hooks(), attention::Kernel::portable);
  ASSERT_GE(facts.all().size(), 2u);
  EXPECT_NE(facts.all().front().value, "");
  EXPECT_THAT(facts.all().front().remedy, HasSubstr("parallel.mixed_hardware = true"));
}

}  // namespace
}  // namespace annulus::training::test
