#include <gtest/gtest.h>

#include <annulus/model/flops.hpp>
#include <annulus/model/parameters.hpp>

namespace annulus::model {
namespace {

LlamaConfig small() {
  LlamaConfig config;
  config.vocabulary = 100;
  config.layers = 3;
  config.hidden = 32;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.ffn = 48;
  return config;
}

// Six operations a token for each weight of a matrix that is multiplied with: all but norms and the
// embedding.
TEST(Flops, OfDenseProductsAreSixAWeight) {
  const LlamaConfig config = small();
  const ParameterMap map(config);
  double weights = 0;
  for (const Parameter& p : map.all())
    if (p.rows > 1 && p.name != "embedding") weights += double(p.size());
  EXPECT_DOUBLE_EQ(dense_flops(config, 7), 6 * 7 * weights);
}

TEST(Flops, TiedWeightsAreMultipliedAllTheSame) {
  LlamaConfig tied = small();
  tied.tied = true;
  EXPECT_DOUBLE_EQ(dense_flops(tied, 7), dense_flops(small(), 7));
}

// A pair costs head_dim multiply-adds in each of Q·Kᵀ, P·V and their four gradients.
TEST(Flops, OfAttentionAreSixProductsAPairAndHead) {
  EXPECT_DOUBLE_EQ(attention_flops(small(), 10), 10.0 * 6 * 2 * 16 * 4 * 3);
}

}  // namespace
}  // namespace annulus::model
