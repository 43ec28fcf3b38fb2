#include <gtest/gtest.h>

#include <annulus/training/model/config.hpp>

#include "training/model/parameters.hpp"
#include "training/model/small_config.hpp"

namespace annulus::model {
namespace {

// Six operations a token for each weight of a matrix that is multiplied with: all but norms, biases
// and the embedding.
TEST(Flops, OfDenseProductsAreSixAWeight) {
  Config config = test::small_config();
  config.block = {.qk_norm = QkNorm::head, .qkv_bias = true};  // which are no products
  const ParameterMap map(config);
  double weights = 0;
  for (const Parameter& p : map.all())
    if (p.rows > 1 && p.name != "embedding") weights += double(p.size());
  EXPECT_DOUBLE_EQ(dense_flops(config, 7), 6 * 7 * weights);
}

TEST(Flops, TiedWeightsAreMultipliedAllTheSame) {
  Config tied = test::small_config();
  tied.tied = true;
  EXPECT_DOUBLE_EQ(dense_flops(tied, 7), dense_flops(test::small_config(), 7));
}

// A pair costs head_dim multiply-adds in each of Q·Kᵀ, P·V and their four gradients.
TEST(Flops, OfAttentionAreSixProductsAPairAndHead) {
  EXPECT_DOUBLE_EQ(attention_flops(test::small_config(), 10), 10.0 * 6 * 2 * 16 * 4 * 3);
}

}  // namespace
}  // namespace annulus::model
