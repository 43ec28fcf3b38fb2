// Models that transformers has made, saved and differentiated (tests/oracle/golden.py): what it calls a model
// is the model here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"
#include "training/io/atomic.hpp"
#include "training/io/safetensors/safetensors.hpp"
#include "training/model/model_problem.hpp"
#include "training/weights/hf_weights.hpp"

namespace annulus::weights {
namespace {

namespace fs = std::filesystem;

/// A folder of what transformers has computed.
class GoldenFolder {
 protected:
  explicit GoldenFolder(const std::string& name) : folder_(fs::path(ANNULUS_GOLDEN_FOLDER) / name) {}
  virtual ~GoldenFolder() = default;

  /// Its configuration (positions are those of mask "causal" or a window), its tensors by transformers'
  /// names, and all parameters of "model" or "gradient".
  virtual HfConfig config() const = 0;
  virtual std::vector<HfTensor> tensors() const = 0;
  virtual std::vector<float> all_of(const char* which) const = 0;

  test::ModelProblem problem() const {
    const auto tokens = expected_.at("tokens").get<std::vector<std::int32_t>>();
    test::ModelProblem problem(std::ssize(tokens), config().mask());
    problem.config = config().shape;
    problem.tokens = tokens;
    problem.targets = expected_.at("targets").get<std::vector<std::int32_t>>();
    const std::vector<float> weights = all_of("model");
    problem.parameters = Array1<float, HostExec>("parameters", weights.size());
    std::copy(weights.begin(), weights.end(), problem.parameters.data());
    return problem;
  }

  /// Cross-entropies of the tokens; 0 without a target.
  static std::vector<float> losses(const test::ModelProblem& problem, const std::vector<float>& logits) {
    const auto vocabulary = static_cast<std::size_t>(problem.config.vocabulary);
    std::vector<float> losses;
    for (std::size_t t = 0; t < problem.targets.size(); ++t) {
      const std::span<const float> row(logits.data() + t * vocabulary, vocabulary);
      double sum = 0;
      for (const float logit : row) sum += std::exp(double(logit));
      const std::int32_t target = problem.targets[t];
      losses.push_back(target < 0 ? 0.0f
                                  : static_cast<float>(std::log(sum) - double(row[std::size_t(target)])));
    }
    return losses;
  }

  /// ‖x − exact‖ / ‖exact‖ of the loss, of the tokens' cross-entropies, of the logits, and of the gradients
  /// by transformers' names.
  struct Errors {
    double loss = 0, losses = 0, logits = 0;
    std::map<std::string, double> gradients;
  };
  template <class T>
  Errors errors(int ranks) const {
    const test::ModelProblem problem = this->problem();
    const test::TemporaryFolder folder;
    const std::string file = folder.file("step.h5");
    test::ModelProblem::Result result;
    comm::run_loopback(Topology::uniform(ranks, ranks), [&](comm::Communicator& communicator) {
      dump::record(
          file, communicator, {.count = 1, .tokens = std::ssize(problem.tokens)}, [](io::FileWriter&) {},
          [&](dump::Recorder& recorder) {
            auto mine = problem.run<T>(communicator, "zigzag", "burst", 1.0f, {}, &recorder);
            if (communicator.rank() == 0) result = std::move(mine);
          });
    });
    Errors errors;
    const double loss = expected_.at("loss");
    errors.loss = std::abs(result.loss - loss) / loss;
    const io::SafetensorsFile exact(folder_ / "logits.safetensors");
    std::vector<float> logits(problem.tokens.size() * static_cast<std::size_t>(problem.config.vocabulary));
    exact.read(exact.tensor("logits"), std::span(logits));
    const std::vector<float> ours = io::File::open(file).read<float>("logits");
    errors.logits = test::relative_error(ours, logits);
    errors.losses = test::relative_error(losses(problem, ours), losses(problem, logits));
    const std::vector<float> gradient = all_of("gradient");
    for (const HfTensor& tensor : tensors()) {
      const auto part = [&](const std::vector<float>& of) {
        return std::vector<float>(of.begin() + tensor.begin, of.begin() + tensor.begin + tensor.size());
      };
      errors.gradients[tensor.name] = test::relative_error(part(result.gradients), part(gradient));
    }
    return errors;
  }

  void expect_the_numbers_of_transformers() const {
    for (const int ranks : {1, 2, 3, 4}) {
      SCOPED_TRACE(ranks);
      const Errors ours = errors<float>(ranks);
      EXPECT_LT(ours.loss, 1e-5);
      EXPECT_LT(ours.logits, 1e-5);
      for (const auto& [name, error] : ours.gradients) EXPECT_LT(error, 1e-5) << name;
    }
  }

  // Transformers' own errors in bf16 stand in expected.json. That of one gradient has much chance in it, so
  // that those of all tensors count together.
  void expect_bfloat16_no_worse_than_of_transformers() const {
    const nlohmann::json& theirs = expected_.at("bf16");
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(ranks);
      const Errors ours = errors<bfloat16>(ranks);
      EXPECT_LE(ours.logits, theirs.at("logits").get<double>());
      EXPECT_LE(ours.losses, theirs.at("losses").get<double>());
      EXPECT_LT(ours.loss, 1.0 / 512);
      double sum_of_ours = 0, sum_of_theirs = 0;
      for (const auto& [name, error] : ours.gradients) {
        const double their_error = theirs.at("gradients").at(name);
        EXPECT_LE(error, 1.5 * their_error) << name;
        sum_of_ours += error * error;
        sum_of_theirs += their_error * their_error;
      }
      EXPECT_LE(sum_of_ours, sum_of_theirs);
    }
  }

  const fs::path folder_;
  const nlohmann::json expected_ = nlohmann::json::parse(io::read_text(folder_ / "expected.json"));
};

class Golden : public testing::TestWithParam<std::string>, public GoldenFolder {
 protected:
  Golden() : GoldenFolder(GetParam()) {}

  HfConfig config() const override { return model_.config(); }
  std::vector<HfTensor> tensors() const override {
    return hf_tensors(model_.map(), *find_family(config().family));
  }
  std::vector<float> all_of(const char* which) const override {
    const HfWeights weights(folder_ / which);
    std::vector<float> values(static_cast<std::size_t>(weights.map().size()));
    weights.read(0, values);
    return values;
  }

  const HfWeights model_{folder_ / "model"};
};

INSTANTIATE_TEST_SUITE_P(Families, Golden,
                         testing::Values("llama", "llama3", "mistral", "qwen2", "qwen3", "llama3_v5",
                                         "qwen2_v5", "qwen3_mixed_v5", "olmo2_v5", "olmo3", "olmo3_v5",
                                         "smollm3", "smollm3_v5", "gemma3", "gemma3_v5", "phi3", "phi3_v5",
                                         "ministral", "ministral_v5", "gemma2", "gemma2_v5", "phi3_partial",
                                         "phi3_partial_v5"),
                         [](const auto& info) { return info.param; });

TEST_P(Golden, LogitsLossAndGradientsAreThoseOfTransformers) {
  expect_the_numbers_of_transformers();
}

TEST_P(Golden, Bfloat16IsNoFurtherFromTheExactNumbersThanTransformers) {
  expect_bfloat16_no_worse_than_of_transformers();
}

/// The attention of gpt-oss (sinks, a window, biases of all products, YaRN without whole dimensions) in a
/// model with dense feed-forward layers, which no config.json can say.
class GoldenGptOss : public testing::Test, public GoldenFolder {
 protected:
  GoldenGptOss() : GoldenFolder("gpt_oss_attention_v5") {}

  HfConfig config() const override {
    HfConfig config;
    config.shape = {.vocabulary = 61,
                    .layers = 2,
                    .hidden = 32,
                    .heads = 4,
                    .kv_heads = 2,
                    .head_dim = 16,
                    .ffn = 40,
                    .rope_theta = 150000,
                    .rope = {.name = "yarn", .factor = 3, .original_length = 16, .truncate = false},
                    .norm_epsilon = 1e-5f,
                    .block = {.qkv_bias = true, .out_bias = true},
                    .pattern = {"window:19,0 sinks, causal sinks"}};
    return config;
  }
  std::vector<HfTensor> tensors() const override {
    return hf_tensors(model::ParameterMap(config().shape), *find_family("llama"));
  }
  std::vector<float> all_of(const char* which) const override {
    const io::SafetensorsFile file(folder_ / which / "model.safetensors");
    std::vector<float> values(static_cast<std::size_t>(model::ParameterMap(config().shape).size()));
    for (const HfTensor& tensor : tensors())
      file.read(file.tensor(tensor.name), std::span(values).subspan(static_cast<std::size_t>(tensor.begin),
                                                                    static_cast<std::size_t>(tensor.size())));
    return values;
  }
};

TEST_F(GoldenGptOss, LogitsLossAndGradientsAreThoseOfTransformers) {
  EXPECT_EQ(io::SafetensorsFile(folder_ / "model" / "model.safetensors").tensors().size(), tensors().size());
  expect_the_numbers_of_transformers();
}

TEST_F(GoldenGptOss, Bfloat16IsNoFurtherFromTheExactNumbersThanTransformers) {
  expect_bfloat16_no_worse_than_of_transformers();
}

TEST_F(GoldenGptOss, ItsConfigurationIsRefusedForItsExperts) {
  EXPECT_THAT(test::error_text([&] { read_hf_config(folder_ / "model"); }),
              test::mentions("config.json", "num_local_experts = 2", "experts"));
}

// Into the engine's parameters and out again.
TEST_P(Golden, TensorsGoInAndOutWithTheSameBits) {
  for (const char* name : {"model", "gradient"}) {  // of the family's type, and with all bits of fp32
    const HfWeights before(folder_ / name);
    const test::TemporaryFolder out;
    const fs::path exported = out.path() / "exported";
    write_hf_folder(
        exported, {.config = before.config(),
                   .type = before.type(),
                   .read = [&](std::int64_t begin, std::span<float> values) { before.read(begin, values); }});
    const HfWeights after(exported);
    EXPECT_EQ(after.config().family, before.config().family);
    EXPECT_EQ(after.config().shape.frequencies().inverse, before.config().shape.frequencies().inverse);
    EXPECT_EQ(after.config().shape.frequencies().attention_factor,
              before.config().shape.frequencies().attention_factor);
    EXPECT_EQ(after.config().mask(), before.config().mask());
    EXPECT_EQ(after.config().shape.soft_cap, before.config().shape.soft_cap);
    EXPECT_EQ(after.config().shape.logit_cap, before.config().shape.logit_cap);
    EXPECT_EQ(after.config().shape.pattern, before.config().shape.pattern);
    for (const TensorFolder::Location& theirs : before.tensors().all()) {
      const TensorFolder::Location ours = after.tensors().find(theirs.tensor->name);
      ASSERT_TRUE(ours) << theirs.tensor->name;
      EXPECT_EQ(ours.tensor->extents, theirs.tensor->extents);
      EXPECT_EQ(ours.tensor->type, theirs.tensor->type);
      std::vector<std::byte> a(theirs.tensor->bytes()), b(ours.tensor->bytes());
      theirs.file->read_bytes(*theirs.tensor, 0, 1, a);
      ours.file->read_bytes(*ours.tensor, 0, 1, b);
      EXPECT_EQ(a, b) << theirs.tensor->name;
    }
  }
}

// The text inside of a model that sees images is the model of text alone, whatever stands before its names.
TEST(GoldenImages, TheTextIsReadAndWhatSeesImagesIsNamed) {
  for (const char* version : {"", "_v5"}) {
    const fs::path folder(ANNULUS_GOLDEN_FOLDER);
    const HfWeights images(folder / (std::string("gemma3_images") + version) / "model"),
        text(folder / (std::string("gemma3") + version) / "model");
    EXPECT_EQ(images.config().family, "gemma3_text");
    HfConfig config = images.config();
    config.token_ids = text.config().token_ids;  // which stand elsewhere
    EXPECT_EQ(to_hf_config(config, DType::f32), to_hf_config(text.config(), DType::f32));
    EXPECT_EQ(images.map().size(), text.map().size());
    std::vector<float> of_images(static_cast<std::size_t>(text.map().size())), of_text(of_images.size());
    images.read(0, of_images);
    text.read(0, of_text);
    EXPECT_EQ(of_images, of_text);
    EXPECT_THAT(images.left_out(), testing::Not(testing::IsEmpty()));
    EXPECT_THAT(images.left_out(),
                testing::Each(testing::AnyOf(testing::HasSubstr("vision_tower."),
                                             testing::HasSubstr("multi_modal_projector."))));
    EXPECT_THAT(text.left_out(), testing::IsEmpty());
  }
}

}  // namespace
}  // namespace annulus::weights
