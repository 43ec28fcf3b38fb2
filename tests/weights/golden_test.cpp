// Models that transformers has made, saved and differentiated (tests/oracle/golden.py): what it calls a model
// is the model here.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <annulus/io/atomic.hpp>
#include <annulus/weights/hf_weights.hpp>

#include "model/llama_problem.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::weights {
namespace {

namespace fs = std::filesystem;

class Golden : public testing::TestWithParam<std::string> {
 protected:
  static std::vector<float> all_of(const HfWeights& weights) {
    std::vector<float> values(static_cast<std::size_t>(weights.map().size()));
    weights.read(0, values);
    return values;
  }

  const fs::path folder_ = fs::path(ANNULUS_GOLDEN_FOLDER) / GetParam();
  const HfWeights model_{folder_ / "model"};
};

INSTANTIATE_TEST_SUITE_P(Families, Golden, testing::Values("llama", "llama3", "mistral", "qwen2", "qwen3"),
                         [](const auto& info) { return info.param; });

TEST_P(Golden, LossAndGradientsAreThoseOfTransformers) {
  const auto expected = nlohmann::json::parse(io::read_text(folder_ / "expected.json"));
  const auto tokens = expected.at("tokens").get<std::vector<std::int32_t>>();
  test::LlamaProblem problem(std::ssize(tokens), model_.config().mask());
  problem.config = model_.config().shape;
  problem.tokens = tokens;
  problem.targets = expected.at("targets").get<std::vector<std::int32_t>>();
  const std::vector<float> weights = all_of(model_), gradient = all_of(HfWeights(folder_ / "gradient"));
  problem.parameters = Array1<float, HostExec>("parameters", weights.size());
  std::copy(weights.begin(), weights.end(), problem.parameters.data());
  for (const int ranks : {1, 2}) {
    const auto result = test::on_ranks<float>(problem, ranks, "zigzag", "burst");
    const double loss = expected.at("loss");
    EXPECT_NEAR(result.loss, loss, 1e-5 * loss);
    for (const model::Parameter& parameter : model_.map().all()) {
      const auto part = [&](const std::vector<float>& of) {
        return std::vector<float>(of.begin() + parameter.offset,
                                  of.begin() + parameter.offset + parameter.size());
      };
      EXPECT_LT(test::relative_error(part(result.gradients), part(gradient)), 1e-5)
          << parameter.name << ", " << ranks << " ranks";
    }
  }
}

// Into the engine's parameters and out again.
TEST_P(Golden, TensorsGoInAndOutWithTheSameBits) {
  const test::TemporaryFolder out;
  const fs::path exported = out.path() / "exported";
  write_hf_folder(exported,
                  {.config = model_.config(),
                   .type = DType::f32,
                   .read = [&](std::int64_t begin, std::span<float> values) { model_.read(begin, values); }});
  const HfWeights again(exported);
  EXPECT_EQ(again.config().family, model_.config().family);
  const model::RopeFrequencies after = again.config().shape.frequencies(),
                               before = model_.config().shape.frequencies();
  EXPECT_EQ(after.inverse, before.inverse);
  EXPECT_EQ(after.attention_factor, before.attention_factor);
  EXPECT_EQ(again.config().mask(), model_.config().mask());
  for (const TensorFolder::Place& theirs : model_.tensors().all()) {
    const TensorFolder::Place ours = again.tensors().find(theirs.tensor->name);
    ASSERT_TRUE(ours) << theirs.tensor->name;
    EXPECT_EQ(ours.tensor->extents, theirs.tensor->extents);
    std::vector<float> a(theirs.tensor->bytes() / sizeof(float)), b = a;
    theirs.file->read(*theirs.tensor, 0, std::span<float>(a));
    ours.file->read(*ours.tensor, 0, std::span<float>(b));
    EXPECT_EQ(a, b) << theirs.tensor->name;
  }
}

}  // namespace
}  // namespace annulus::weights
