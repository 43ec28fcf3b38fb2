// The formula of what layers keep for their backward passes against what a model allocates.
#include <annulus/model/activation_memory.hpp>

#include <gtest/gtest.h>

#include <annulus/base/float16.hpp>
#include <annulus/core/memory.hpp>
#include <annulus/model/llama.hpp>
#include <annulus/sequence/layout.hpp>

#include "support/exec.hpp"

namespace annulus::model {
namespace {

using test::TestExec;

constexpr int sequences = 2;
constexpr std::int64_t tokens = 37;  // of each

LlamaConfig config_of(int layers) {
  LlamaConfig config;
  config.vocabulary = 50;
  config.layers = layers;
  config.hidden = 40;
  config.heads = 6;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.ffn = 72;
  return config;
}

template <class T>
std::int64_t allocated(int layers, Recompute recompute) {
  const auto in_use = [] {
    return memory_use(Owned<Array1<float, TestExec>>::kind)
        .current[static_cast<std::size_t>(MemoryCategory::activations)];
  };
  const std::int64_t before = in_use();
  const Llama<TestExec, T> llama(test::rank_instance(), config_of(layers), Layout().shard(tokens, 1, 0),
                                 {.sequences = sequences, .recompute = recompute});
  return in_use() - before;
}

template <class T>
void expect_the_formula() {
  std::int64_t scratch = 0;  // comes on top, the same under every policy
  for (const Recompute recompute : {Recompute::none, Recompute::full, Recompute::selective}) {
    SCOPED_TRACE(name_of(recompute));
    const auto kept = [&](int layers) {
      return kept_activation_bytes(config_of(layers), sequences * tokens, dtype_of<T>, recompute);
    };
    EXPECT_EQ(allocated<T>(5, recompute) - allocated<T>(2, recompute), kept(5) - kept(2));
    const std::int64_t more = allocated<T>(2, recompute) - kept(2);
    EXPECT_GT(more, 0);
    if (recompute == Recompute::none) scratch = more;
    EXPECT_EQ(more, scratch);
  }
}

TEST(ActivationMemory, GrowsWithTheLayersAsTheFormulaSays) {
  expect_the_formula<float>();
  expect_the_formula<bfloat16>();
}

// The examples of docs/memory.md.
TEST(ActivationMemory, OfSevenBillionParameters) {
  LlamaConfig config;
  config.layers = 32;
  config.hidden = 4096;
  config.heads = config.kv_heads = 32;
  config.head_dim = 128;
  config.ffn = 11008;
  const auto kept = [&](Recompute recompute) {
    return double(kept_activation_bytes(config, 1, DType::bf16, recompute)) / 1024;  // KiB
  };
  EXPECT_NEAR(kept(Recompute::none) / config.layers, 99, 0.5);
  EXPECT_NEAR(kept(Recompute::selective), 847, 0.5);
  EXPECT_NEAR(kept(Recompute::full), 347, 0.5);
}

}  // namespace
}  // namespace annulus::model
