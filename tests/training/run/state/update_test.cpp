// One update of training in bf16 at the head dimensions of tensor cores, against LLaMA and AdamW in double
// precision.

#include <random>

#include "support/attention/attention_kernels.hpp"
#include "training/io/hdf5_files/hdf5.hpp"
#include "training/model/reference_model.hpp"
#include "training/parameter_sharding/flat_ranges.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

using Numbers = std::vector<double>;

/// What an update started from and came to, parameter by parameter in one flat buffer.
struct Update {
  Numbers parameters, gradients, updated;
  std::vector<std::int32_t> tokens, targets;
  double loss = 0;
};

class BfloatUpdate : public testing::TestWithParam<int> {
 protected:
  Config config(int ranks) const {
    return tiny_.config(
        fmt::format("{}-ranks", ranks),
        {fmt::format("model.head_dim={}", GetParam()),
         "data.sequence_length=101",  // more than a tile of keys, and not evenly divided
         "attention.mask=causal", "attention.schedule=burst", "train.dtype=bf16", "train.steps=1",
         "train.warmup_steps=0", "train.min_lr=0.01", "train.clip_norm=1e9"});
  }

  Update update(int ranks) const {
    const Config config = this->config(ranks);
    const std::string file = tiny_.file(fmt::format("{}.h5", ranks)).string();
    const annulus::test::KernelsSeen kernels;
    run(ranks, config, {}, {}, {file, 1});
    annulus::test::expect_flagship_kernels(kernels, fmt::format("{} ranks", ranks));

    const io::File dump = io::File::open(file);
    Update update;
    update.tokens = dump.read<std::int32_t>("tokens");
    update.targets = dump.read<std::int32_t>("targets");
    update.loss = dump.read<double>("loss").at(0);
    const model::ParameterMap map(config.model);
    for (const model::Parameter& parameter : map.all()) {
      for (const auto& [group, numbers] :
           {std::pair("parameters", &update.parameters), {"gradients", &update.gradients}}) {
        const auto values = dump.read<float>(fmt::format("{}/{}", group, parameter.name));
        numbers->insert(numbers->end(), values.begin(), values.end());
      }
    }
    const auto state = state_of(config, checkpoint_of(config, 1));
    update.updated.assign(state.parameters.begin(), state.parameters.end());
    return update;
  }

  TinyRun tiny_;
};

Numbers part(const Numbers& all, const model::Parameter& parameter) {
  return Numbers(all.begin() + parameter.offset, all.begin() + parameter.offset + parameter.size());
}

double dot(const Numbers& a, const Numbers& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// A rounding to bf16 is wrong by 2⁻⁸ at most, and a gradient has some sixteen behind it.
constexpr double bfloat16_error = 16.0 / 256;

TEST_P(BfloatUpdate, IsThatOfDoublePrecision) {
  const Update one = update(1), two = update(2);
  ASSERT_EQ(one.parameters, two.parameters);
  ASSERT_EQ(one.tokens, two.tokens);
  const Config config = this->config(1);
  const annulus::test::ReferenceModel reference(config.model,
                                                Mask::parse("causal", config.data.sequence_length));
  const auto targets =
      double(std::ranges::count_if(one.targets, [](std::int32_t target) { return target >= 0; }));
  const double loss = reference.loss(one.parameters, one.tokens, one.targets) / targets;
  std::mt19937 random(5);
  std::normal_distribution<double> normal;

  for (const model::Parameter& parameter : reference.map().all()) {
    // Along the gradient itself its length shows, along random directions what it should not have.
    std::vector<Numbers> directions = {part(one.gradients, parameter)};
    while (directions.size() < 3) {
      Numbers& direction = directions.emplace_back(static_cast<std::size_t>(parameter.size()));
      for (double& x : direction) x = normal(random);
    }
    for (std::size_t d = 0; d < directions.size(); ++d) {
      const double exact =
          reference.slope(one.parameters, one.tokens, one.targets, parameter, directions[d]) / targets;
      for (const Update* update : {&one, &two}) {
        const Numbers gradient = part(update->gradients, parameter);
        const double length = std::sqrt(dot(gradient, gradient));
        // The error's part along a random direction is normal: four deviations.
        const double limit =
            bfloat16_error * length * (d == 0 ? std::sqrt(dot(directions[0], directions[0])) : 4.0);
        EXPECT_GT(length, 0) << parameter.name;
        EXPECT_NEAR(dot(gradient, directions[d]), exact, limit)
            << parameter.name << ", direction " << d << ", " << (update == &one ? 1 : 2) << " ranks";
      }
    }
  }

  for (const Update* update : {&one, &two}) {
    EXPECT_NEAR(update->loss, loss, 1e-3 * loss);
    // AdamW's first update of the master weights, in which both moments are those of one gradient.
    for (const model::Parameter& parameter : reference.map().all()) {
      for (auto i = static_cast<std::size_t>(parameter.offset);
           i < static_cast<std::size_t>(parameter.offset + parameter.size()); ++i) {
        const double gradient = update->gradients[i];
        const double decay = parameter_sharding::Updates().decays(parameter)
                                 ? config.train.lr * config.train.weight_decay
                                 : 0.0;
        const double expected = (1 - decay) * update->parameters[i] -
                                config.train.lr * gradient / (std::abs(gradient) + config.train.epsilon);
        ASSERT_NEAR(update->updated[i], expected, 1e-6) << parameter.name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, BfloatUpdate, testing::Values(64, 128));

}  // namespace
}  // namespace annulus::training::test
