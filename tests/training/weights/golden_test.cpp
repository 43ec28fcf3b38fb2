// Models that transformers has made, saved and differentiated (tests/oracle/golden.py): what it calls a model
// is the model here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "support/temporary_folder.hpp"
#include "training/io/atomic.hpp"
#include "training/model/model_problem.hpp"
#include "training/weights/hf_weights.hpp"

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

  test::ModelProblem problem() const {
    const auto tokens = expected_.at("tokens").get<std::vector<std::int32_t>>();
    test::ModelProblem problem(std::ssize(tokens), model_.config().mask());
    problem.config = model_.config().shape;
    problem.tokens = tokens;
    problem.targets = expected_.at("targets").get<std::vector<std::int32_t>>();
    const std::vector<float> weights = all_of(model_);
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
    const std::vector<float> gradient = all_of(HfWeights(folder_ / "gradient"));
    for (const HfTensor& tensor : hf_tensors(model_.map(), *find_family(model_.config().family))) {
      const auto part = [&](const std::vector<float>& of) {
        return std::vector<float>(of.begin() + tensor.begin, of.begin() + tensor.begin + tensor.size());
      };
      errors.gradients[tensor.name] = test::relative_error(part(result.gradients), part(gradient));
    }
    return errors;
  }

  const fs::path folder_ = fs::path(ANNULUS_GOLDEN_FOLDER) / GetParam();
  const nlohmann::json expected_ = nlohmann::json::parse(io::read_text(folder_ / "expected.json"));
  const HfWeights model_{folder_ / "model"};
};

INSTANTIATE_TEST_SUITE_P(Families, Golden,
                         testing::Values("llama", "llama3", "mistral", "qwen2", "qwen3", "llama3_v5",
                                         "qwen2_v5", "qwen3_mixed_v5", "olmo2_v5", "olmo3", "olmo3_v5",
                                         "smollm3", "smollm3_v5", "gemma3", "gemma3_v5", "phi3", "phi3_v5",
                                         "ministral", "ministral_v5"),
                         [](const auto& info) { return info.param; });

TEST_P(Golden, LogitsLossAndGradientsAreThoseOfTransformers) {
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
TEST_P(Golden, Bfloat16IsNoFurtherFromTheExactNumbersThanTransformers) {
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
