// What the tables of a model's arrays hold, and where what layers keep lies beside gradients.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/exec.hpp"
#include "training/model/backward_memory.hpp"
#include "training/model/model_arrays.hpp"
#include "training/model/variant.hpp"

namespace annulus::model {
namespace {

using test::TestExec;

constexpr int sequences = 2;
constexpr std::int64_t tokens = 37;  // of each

Config config_of(int layers, const test::Variant& variant = {}) {
  Config config{
      .vocabulary = 50, .layers = layers, .hidden = 40, .heads = 6, .kv_heads = 2, .head_dim = 16, .ffn = 72};
  variant.set(config);
  return config;
}

/// Bytes of a model's activations.
struct Activations {
  std::int64_t kept, working, host;
  std::vector<std::int64_t> kept_by_layer = {};

  explicit Activations(const ModelArrays& arrays) : kept(bytes_of(arrays.kept)), working(0), host(0) {
    for (const PlannedArray& array : arrays.others) {
      if (array.label == "annulus::model::activations") working += array.bytes();
      if (array.label == "annulus::model::offloaded_activations") host += array.bytes();
    }
    for (const PlannedArray& layer : arrays.kept) kept_by_layer.push_back(layer.bytes());
  }
};

Activations memory_of(const Config& config, const ActivationOptions& options) {
  return Activations(
      model_arrays(config, {.sequences = sequences, .tokens = tokens, .early = options.early_positions},
                   DType::bf16, options, 1, test::on_host));
}

// What goes into the norms is kept instead of what comes out.
TEST(ModelArrays, LayersKeepNoMoreWithBiasesAndNorms) {
  for (const Recompute recompute : {Recompute::none, Recompute::full, Recompute::selective})
    EXPECT_LE(memory_of(config_of(4, test::with_both), {.recompute = {recompute}}).kept,
              memory_of(config_of(4), {.recompute = {recompute}}).kept);
}

TEST(ModelArrays, ShrinksAsThePoliciesSay) {
  const auto of = [](const ActivationOptions& options) { return memory_of(config_of(24), options); };
  const Activations none = of({}), selective = of({.recompute = {Recompute::selective}}),
                    half = of({.recompute = {Recompute::sequence_selective}, .early_positions = tokens / 2}),
                    full = of({.recompute = {Recompute::full}});
  EXPECT_GT(none.kept, selective.kept);
  EXPECT_GT(selective.kept, half.kept);
  EXPECT_GT(half.kept, full.kept);
  const Activations offloaded = of({.recompute = {Recompute::selective}, .offload = 1});
  EXPECT_EQ(offloaded.kept, 0);
  EXPECT_EQ(offloaded.host, selective.kept / 24 * 22);  // two stay in their slots
  EXPECT_EQ(offloaded.working, selective.working + selective.kept / 24 * 2);
  EXPECT_LT(of({.recompute = {Recompute::full}, .chunk_rows = 8}).working, full.working);
}

// Room on the device that a layer without recompute has been given is not taken back by offload.
TEST(ModelArrays, LayersWithoutRecomputeStayOnTheDevice) {
  const auto of = [](const std::vector<Recompute>& policies, double offload) {
    return Activations(model_arrays(config_of(4), {.sequences = 1, .tokens = 64}, DType::f32,
                                    {.recompute = policies, .offload = offload}, 1, true));
  };
  using enum Recompute;
  const std::int64_t whole = of({none}, 0).kept / 4;
  EXPECT_EQ(of({selective, selective, none, none}, 1).kept, 2 * whole);
  EXPECT_EQ(of({selective, selective, selective, none}, 1).kept_by_layer,
            (std::vector<std::int64_t>{0, 0, 0, whole}));
  EXPECT_EQ(of({none, none, none, none}, 1).kept, 0);
}

/// What layers keep, needed until the backward pass has gone through them: behind one step of it for the
/// last.
ArrayTable kept_of(const std::vector<std::int64_t>& bytes) {
  ArrayTable kept;
  for (const std::int64_t of_layer : bytes)
    kept.push_back({.label = {}, .elements = of_layer, .to = static_cast<int>(bytes.size() - kept.size())});
  return kept;
}
/// Elements of a gradient, and how many of three layers are still needed when it begins.
using Gradient = std::pair<std::int64_t, int>;
ArrayTable gradients_of(const std::vector<Gradient>& gradients) {
  ArrayTable table;
  for (const auto& [elements, layers_before] : gradients)
    table.push_back({.label = {}, .elements = elements, .element = sizeof(float), .from = 3 - layers_before});
  return table;
}

// At every moment of the backward pass a gradient that begins lies beside what layers still need, and the
// memory is no more than the most of both at one moment.
TEST(BackwardMemory, GradientsGrowIntoWhatLayersGiveBack) {
  const auto expect_room = [](const std::vector<std::int64_t>& kept, const std::vector<Gradient>& gradients) {
    const ArrayTable table = gradients_of(gradients);
    const BackwardLayout layout = backward_layout(kept_of(kept), table);
    std::int64_t held = 0, most = layout.kept_bytes, address = layout.gradients + bytes_of(table);
    for (auto next = gradients.rbegin(); next != gradients.rend(); ++next) {
      held += 4 * next->first;
      address -= 4 * next->first;
      std::int64_t needed = 0;
      for (std::size_t layer = 0; layer < kept.size(); ++layer)
        if (static_cast<int>(layer) < next->second)
          needed = std::max(needed, layout.kept[layer] + kept[layer]);
      EXPECT_LE(needed, address);
      most = std::max(most, needed + held);
    }
    EXPECT_EQ(address, layout.gradients);
    EXPECT_GE(layout.bytes, most);
    EXPECT_LT(layout.bytes, most + 256);
  };
  const std::vector<Gradient> of_units{{1000, 0}, {777, 0}, {777, 1}, {777, 2}, {1001, 3}},
      with_head_first{{1000, 3}, {777, 1}, {777, 2}, {777, 3}, {64, 3}},
      of_several_passes{{1000, 3}, {777, 3}, {777, 3}, {777, 3}, {1001, 3}};
  for (const std::int64_t bytes : {0, 512, 2560, 25600}) {
    const std::vector<std::int64_t> kept{bytes, 2 * bytes, bytes};
    for (const auto& gradients : {of_units, with_head_first, of_several_passes, {}})
      expect_room(kept, gradients);
    EXPECT_EQ(backward_layout(kept_of(kept), gradients_of(of_several_passes)).bytes, 4 * bytes + 4 * 4332);
  }
  expect_room({}, of_units);
  EXPECT_EQ(backward_layout(kept_of({2560, 2560, 2560}), gradients_of(of_units)).bytes, 4 * 4332);
}

TEST(BackwardMemory, CountsWhatHasBegunAsGradients) {
  const auto counted = [] {
    const MemoryUse use = memory_use(BackwardMemory<TestExec>::kind);
    return std::pair(use.current[static_cast<std::size_t>(MemoryCategory::activations)],
                     use.current[static_cast<std::size_t>(MemoryCategory::gradients)]);
  };
  const auto before = counted();
  const auto since = [&] {
    return std::pair(counted().first - before.first, counted().second - before.second);
  };
  using Pair = std::pair<std::int64_t, std::int64_t>;
  {
    BackwardMemory<TestExec> memory(test::rank_instance(), kept_of({512, 512}),
                                    gradients_of({{64, 1}, {256, 1}, {128, 2}}));
    EXPECT_EQ(memory.gradients().extent(0), 448u);
    EXPECT_EQ(memory.kept(1) - memory.kept(0), 512);
    EXPECT_EQ(since(), Pair(1024, 768));
    EXPECT_TRUE(memory.hold(2));
    EXPECT_FALSE(memory.hold(2));
    EXPECT_EQ(since(), Pair(1024, 768));
    EXPECT_TRUE(memory.hold(1));
    EXPECT_EQ(since(), Pair(256, 1536));
    memory.forget();
    EXPECT_EQ(since(), Pair(1024, 768));
    EXPECT_TRUE(memory.hold(1));
  }
  EXPECT_EQ(counted(), before);
}

/// The examples of docs/memory.md: 7 billion parameters.
class SevenBillion : public testing::Test {
 protected:
  static constexpr std::int64_t rows = 32768;
  Activations memory(const ActivationOptions& options) const {
    return Activations(model_arrays(config_, {.tokens = rows, .early = options.early_positions}, DType::bf16,
                                    options, 1, false));
  }
  static double kib_a_row(std::int64_t bytes) { return double(bytes) / double(rows) / 1024; }
  const Config config_{.vocabulary = 32000,
                       .layers = 32,
                       .hidden = 4096,
                       .heads = 32,
                       .kv_heads = 32,
                       .head_dim = 128,
                       .ffn = 11008};
};

TEST_F(SevenBillion, KeepsWhatTheTableSays) {
  EXPECT_NEAR(kib_a_row(memory({}).kept) / 32, 91.1, 0.1);
  EXPECT_NEAR(kib_a_row(memory({.recompute = {Recompute::selective}}).kept), 516, 1);
  EXPECT_NEAR(kib_a_row(memory({.recompute = {Recompute::full}}).kept), 256, 0.1);
  EXPECT_NEAR(
      kib_a_row(memory({.recompute = {Recompute::sequence_selective}, .early_positions = rows / 2}).kept),
      386, 1);
}

// The peak of one layer, term by term as docs/memory.md derives it.
TEST_F(SevenBillion, PeaksInAttentionsBackwardWhenTheRestRunsInChunks) {
  // Q, K, V, dO and the residual's gradient in bf16; dQ, dK and dV in fp32; LSE, D and inverse RMS. Of a
  // chunk the products of Q, K, V, the norm and its gradient.
  const double attention =
      (5 * 2 * 4096 + 3 * 4 * 4096 + 2 * 4 * 32 + 4 + 5 * 2 * 4096 / (double(rows) / 1024)) / 1024.0;
  const auto working = [&](Recompute recompute, std::int64_t early) {
    return kib_a_row(
        memory({.recompute = {recompute}, .early_positions = early, .chunk_rows = 1024}).working);
  };
  EXPECT_NEAR(working(Recompute::full, 0), attention, 0.001 * attention);
  EXPECT_NEAR(working(Recompute::sequence_selective, rows / 2), attention, 0.001 * attention);
  // Q takes the place of attention's output, LSE is kept.
  EXPECT_NEAR(working(Recompute::selective, 0), attention - 8.125, 0.001 * attention);
  // Gate, up and their product, with the gradient and the norm beside them.
  EXPECT_GT(kib_a_row(memory({.recompute = {Recompute::selective}}).working), 1.15 * attention);
}

}  // namespace
}  // namespace annulus::model
