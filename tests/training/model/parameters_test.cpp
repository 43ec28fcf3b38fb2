#include <gtest/gtest.h>

#include <cmath>

#include <annulus/base/error.hpp>

#include "training/model/parameters.hpp"
#include "training/model/small_config.hpp"

namespace annulus::model {
namespace {

TEST(ParameterMap, CoversTheBufferWithoutGaps) {
  for (const bool tied : {false, true}) {
    Config config = test::small_config();
    config.tied = tied;
    const ParameterMap map(config);
    std::int64_t end = 0;
    for (const Parameter& parameter : map.all()) {
      EXPECT_EQ(parameter.offset, end) << parameter.name;
      end += parameter.size();
    }
    EXPECT_EQ(end, map.size());
    for (const Parameter& parameter : map.all()) {
      EXPECT_EQ(&map.at(parameter.offset), &parameter);
      EXPECT_EQ(&map.at(parameter.offset + parameter.size() - 1), &parameter);
    }
    EXPECT_THROW(map.at(map.size()), Error);
    EXPECT_THROW(map.at(-1), Error);
    EXPECT_EQ(map.unit_name(map.embedding_unit()), "the embedding");
    EXPECT_EQ(map.unit_name(map.layer_unit(1)), "layer 1");
    EXPECT_EQ(map.unit_name(map.final_unit()), tied ? "the final norm" : "the final norm and the LM head");
    const std::int64_t layer = 2 * 64 + (4 + 2 * 2) * 16 * 64 + 64 * 64 + 3 * 96 * 64;
    EXPECT_EQ(map.size(), 50 * 64 * (tied ? 1 : 2) + 3 * layer + 64);
    EXPECT_EQ(map.lm_head() == map.embedding(), tied);
  }
}

TEST(ParameterMap, UnitsCoverTheBufferInOrder) {
  for (const bool tied : {false, true}) {
    Config config = test::small_config();
    config.tied = tied;
    const ParameterMap map(config);
    std::int64_t end = 0;
    for (const ParameterUnit& unit : map.units()) {
      EXPECT_EQ(unit.begin, end);
      end = unit.end;
    }
    EXPECT_EQ(end, map.size());
    ASSERT_EQ(map.units().size(), 3u + 2u);
    EXPECT_EQ(map.unit(map.embedding_unit()).size(), 50 * 64);
    for (int layer = 0; layer < 3; ++layer)
      EXPECT_EQ(map.unit(map.layer_unit(layer)).begin, map.layer(layer).attention_norm);
    EXPECT_EQ(map.unit(map.final_unit()).begin, map.final_norm());
    EXPECT_EQ(map.lm_head_unit(), tied ? map.embedding_unit() : map.final_unit());
  }
}

TEST(ParameterMap, KeepsQueryKeyValueAndGateUpTogether) {
  const ParameterMap map(test::small_config());
  EXPECT_EQ(map.find("layers.1.attention.query").offset, map.layer(1).qkv);
  EXPECT_EQ(map.find("layers.1.attention.key").offset, map.layer(1).qkv + 64 * 64);
  EXPECT_EQ(map.find("layers.1.attention.value").offset, map.layer(1).qkv + (64 + 32) * 64);
  EXPECT_EQ(map.find("layers.1.ffn.up").offset, map.layer(1).gate_up + 96 * 64);
  EXPECT_EQ(map.find("layers.1.ffn_norm").kind, TensorKind::norm);
  EXPECT_EQ(map.find("embedding").kind, TensorKind::embedding);
  EXPECT_EQ(map.find("layers.1.ffn.up").kind, TensorKind::matrix);
  EXPECT_THROW(map.find("layers.7.ffn.up"), Error);
}

TEST(ParameterMap, HasBiasesBehindTheMatricesAndNormsOfHeadsBehindThem) {
  Config config = test::small_config();
  const std::int64_t plain = ParameterMap(config).size();
  config.block = {.qk_norm = QkNorm::head, .qkv_bias = true};
  const ParameterMap map(config);
  EXPECT_EQ(map.size(), plain + 3 * ((4 + 2 * 2) * 16 + 2 * 16));
  const LayerParameters& layer = map.layer(1);
  EXPECT_EQ(layer.qkv_bias, layer.qkv + (64 + 32 + 32) * 64);
  EXPECT_EQ(map.find("layers.1.attention.query_bias").offset, layer.qkv_bias);
  EXPECT_EQ(map.find("layers.1.attention.key_bias").offset, layer.qkv_bias + 64);
  EXPECT_EQ(map.find("layers.1.attention.value_bias").offset, layer.qkv_bias + 64 + 32);
  EXPECT_EQ(map.find("layers.1.attention.query_norm").offset, layer.qk_norm);
  EXPECT_EQ(map.find("layers.1.attention.key_norm").offset, layer.qk_norm + 16);
  EXPECT_EQ(map.find("layers.1.attention.out").offset, layer.qk_norm + 2 * 16);
  for (const char* name : {"query_bias", "key_bias", "value_bias"})
    EXPECT_EQ(map.find(std::string("layers.2.attention.") + name).kind, TensorKind::bias) << name;
  for (const char* name : {"query_norm", "key_norm"})
    EXPECT_EQ(map.find(std::string("layers.2.attention.") + name).kind, TensorKind::norm) << name;
}

TEST(ParameterMap, HasSinksOfTheirLayersAloneAndABiasBehindAttention) {
  Config config = test::small_config();
  const std::int64_t plain = ParameterMap(config).size();
  config.pattern = {"window:7,0 sinks, causal"};
  config.block.out_bias = true;
  const ParameterMap map(config);
  EXPECT_EQ(map.size(), plain + 3 * 64 + 2 * 4);
  EXPECT_EQ(map.find("layers.2.attention.sinks").offset, map.layer(2).sinks);
  EXPECT_EQ(map.layer(2).sinks + 4, map.unit(map.layer_unit(2)).end);
  EXPECT_THROW(map.find("layers.1.attention.sinks"), Error);
  EXPECT_EQ(map.find("layers.1.attention.out_bias").offset, map.layer(1).attention_out + 64 * 64);
  EXPECT_EQ(map.find("layers.0.attention.sinks").kind, TensorKind::sinks);
  EXPECT_EQ(map.find("layers.0.attention.out_bias").kind, TensorKind::bias);
}

TEST(Initialize, IsNormalWithTheStatedDeviationAndDependsOnTheSeedAlone) {
  const HostExec exec;
  Config config = test::small_config();
  config.block = {.qk_norm = QkNorm::head, .qkv_bias = true};
  const ParameterMap map(config);
  Array1<float, HostExec> a("a", map.size()), b("b", map.size()), other("other", map.size());
  initialize(exec, map, 5, a);
  initialize(exec, map, 5, b);
  initialize(exec, map, 6, other);
  exec.fence();
  std::int64_t equal = 0;
  for (std::int64_t i = 0; i < map.size(); ++i) {
    ASSERT_EQ(a(i), b(i));
    equal += a(i) == other(i);
  }
  EXPECT_EQ(equal, (2 * 3 + 1) * 64 + 3 * (2 * 16 + 8 * 16))
      << "only gains, which are one, and biases, which are zero, do not depend on the seed";
  for (const Parameter& parameter : map.all()) {
    double sum = 0, squares = 0;
    for (std::int64_t i = 0; i < parameter.size(); ++i) {
      sum += a(parameter.offset + i);
      squares += double(a(parameter.offset + i)) * a(parameter.offset + i);
    }
    const double mean = sum / double(parameter.size()),
                 deviation = std::sqrt(squares / double(parameter.size()) - mean * mean);
    const bool gain = parameter.name.ends_with("norm");
    EXPECT_NEAR(mean, gain ? 1 : 0, 5 * parameter.init_deviation / std::sqrt(double(parameter.size())))
        << parameter.name;
    EXPECT_NEAR(deviation, parameter.init_deviation, 0.1 * parameter.init_deviation + 1e-6) << parameter.name;
  }
}

}  // namespace
}  // namespace annulus::model
