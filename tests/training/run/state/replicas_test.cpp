// A bit that one rank alone has changed is found, and nothing is saved with it.

#include "training/run/state/tensor_hashes.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

void flip(const FlatBuffer& buffer, std::int64_t element, int bit) {
  float value = 0;
  buffer.read(element, {&value, 1});
  value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ (std::uint32_t{1} << bit));
  buffer.write(element, {&value, 1});
}

class Replicas : public TinyTest {
 protected:
  /// What the ranks are told when bit 3 of the first element of `tensor` flips on the `bad` ones in step 4.
  std::vector<std::string> with_flips(int ranks, const Config& config, const std::set<int>& bad,
                                      FlatBuffer Buffers::*buffer, const std::string& tensor) const {
    const std::int64_t element = model::ParameterMap(config.model).find(tensor).offset;
    return messages_when_changed(ranks, config, bad, 4,
                                 [&](const Buffers& held) { flip(held.*buffer, element, 3); });
  }
  std::string some_tensor(std::size_t index) const {
    return model::ParameterMap(tiny_.config("").model).all().at(index).name;
  }
};

TEST_F(Replicas, OneBitOfOneRankIsFoundAndNamed) {
  Config config =
      tiny_.config("run", {"train.check_replicas=1", "parallel.context=2"});  // two data-parallel groups
  struct Case {
    FlatBuffer Buffers::*buffer;
    const char* text;
    std::size_t tensor;
  };
  for (const Case& c : {Case{&Buffers::parameters, "the parameter ", 0},
                        Case{&Buffers::first_moment, "the first moment of ", 3},
                        Case{&Buffers::second_moment, "the second moment of ", 1}}) {
    const std::string tensor = some_tensor(c.tensor);
    config.run.folder = tiny_.folder().file("run" + std::to_string(c.tensor));
    EXPECT_THAT(
        with_flips(4, config, {2}, c.buffer, tensor),
        Each(AllOf(mentions("after optimizer step 4", c.text + tensor + " of rank 2 (", comm::machine_name()),
                   Not(HasSubstr("majority")))));
    EXPECT_TRUE(fs::exists(checkpoint_of(config, 3)));
    EXPECT_FALSE(fs::exists(checkpoint_of(config, 6)));
  }
}

TEST_F(Replicas, TwoRanksAreBothNamed) {
  Config config = tiny_.config("run", {"train.check_replicas=2"});
  const std::string tensor = some_tensor(2);
  EXPECT_THAT(with_flips(2, config, {1}, &Buffers::parameters, tensor),
              Each(mentions("the parameter " + tensor + " differs between rank 0 (", " and rank 1 (",
                            "no side has a majority")));
}

TEST_F(Replicas, ACheckpointIsNotWrittenWithReplicasThatDiffer) {
  // At the start and before checkpoints alone.
  const Config config = tiny_.config("run", {"train.check_replicas=0", "checkpoint.keep=1"});
  const auto texts = with_flips(3, config, {0}, &Buffers::second_moment, some_tensor(0));
  EXPECT_THAT(texts, Each(AllOf(StartsWith("after optimizer step 6 "), HasSubstr(" of rank 0 ("))));
  EXPECT_TRUE(fs::exists(checkpoint_of(config, 3)));
  EXPECT_FALSE(fs::exists(checkpoint_of(config, 6)));
  // From there the run goes on to its end.
  EXPECT_EQ(run(3, config).first_step, 3);
}

TEST_F(Replicas, RanksOnOtherHardwareAreNotCompared) {
  Config config = tiny_.config("run", {"train.check_replicas=1", "parallel.mixed_hardware=true"});
  const auto with_bad = [&](int bad) {
    return messages(3, [&](int rank) {
      Hooks hooks;
      hooks.hardware = comm::Facts();
      hooks.hardware->add("the GPU model", rank == 2 ? "new" : "old", "");
      if (rank == bad)
        hooks.updated = [](std::int64_t step, const Buffers& b) {
          if (step == 2) flip(b.parameters, 0, 1);
        };
      return std::pair(config, hooks);
    });
  };
  EXPECT_THAT(with_bad(2), Each(std::string("no error")));
  fs::remove_all(config.run.folder);
  EXPECT_THAT(with_bad(1), Each(mentions("rank 0 (", "rank 1 (")));
}

TEST(TensorHashes, EveryBitOfEveryElementChangesTheHashOfItsTensor) {
  model::Config shape;
  shape.vocabulary = 3;
  shape.layers = 1;
  shape.hidden = 5;  // odd, so that tensors start and end anywhere
  shape.heads = shape.kv_heads = 1;
  shape.head_dim = 16;
  shape.ffn = 7;
  const model::ParameterMap map(shape);
  const Arrays arrays(map);
  const Buffers buffers = arrays.buffers();
  const TestExec exec;
  model::initialize(exec, map, 1, arrays.parameters);
  const auto all = [&] {
    return tensor_hashes<float, TestExec>(exec, map.all().size(), pieces_of(map),
                                          {arrays.parameters, arrays.first_moment, arrays.second_moment});
  };
  const auto before = all();
  ASSERT_EQ(before.size(), 3 * map.all().size());
  EXPECT_EQ(all(), before);
  for (std::size_t tensor = 0; tensor < map.all().size(); ++tensor) {
    const model::Parameter& p = map.all()[tensor];
    for (std::int64_t i = 0; i < p.size(); i += std::max<std::int64_t>(1, p.size() / 7))
      for (const int bit : {0, 13, 31}) {
        flip(buffers.parameters, p.offset + i, bit);
        const auto after = all();
        for (std::size_t k = 0; k < before.size(); ++k)
          EXPECT_EQ(after[k] == before[k], k != tensor) << p.name << " element " << i << " bit " << bit;
        flip(buffers.parameters, p.offset + i, bit);
      }
  }
  EXPECT_EQ(all(), before);
  // Two elements that change places.
  std::array<float, 2> values{};
  buffers.parameters.read(0, values);
  std::swap(values[0], values[1]);
  buffers.parameters.write(0, values);
  EXPECT_NE(all()[0], before[0]);
}

}  // namespace
}  // namespace annulus::training::test
