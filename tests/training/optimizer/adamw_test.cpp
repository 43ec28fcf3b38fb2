#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include <annulus/base/dtype.hpp>

#include "support/arrays.hpp"
#include "support/error_text.hpp"
#include "training/optimizer/adamw.hpp"

namespace annulus::optimizer {
namespace {

using test::floats_of, test::TestExec;

using Buffer = Array1<float, TestExec>;

// Gradients whose size differs much between elements and steps.
float gradient_at(std::int64_t element, int step) {
  std::mt19937 random(static_cast<unsigned>(element * 977 + step));
  const float magnitude = std::ldexp(1.0f, static_cast<int>(random() % 20) - 15);
  return magnitude * std::uniform_real_distribution<float>(-1.0f, 1.0f)(random);
}

float parameter_at(std::int64_t element) {
  return std::sin(0.37f * static_cast<float>(element));
}

constexpr double learning_rates[] = {1e-2, 5e-3, 2e-2, 1e-3, 1e-2, 1e-2};

// torch.optim.AdamW (decoupled decay, no AMSGrad) for one element, in double.
double reference(const AdamWOptions& options, std::int64_t element, bool decay, int steps,
                 double gradient_scale) {
  double parameter = parameter_at(element), first = 0.0, second = 0.0;
  for (int step = 1; step <= steps; ++step) {
    const double lr = learning_rates[step - 1], gradient = gradient_scale * gradient_at(element, step);
    if (decay) parameter *= 1.0 - lr * options.weight_decay;
    first = options.beta1 * first + (1.0 - options.beta1) * gradient;
    second = options.beta2 * second + (1.0 - options.beta2) * gradient * gradient;
    const double corrected_first = first / (1.0 - std::pow(options.beta1, step));
    const double corrected_second = second / (1.0 - std::pow(options.beta2, step));
    parameter -= lr * corrected_first / (std::sqrt(corrected_second) + options.epsilon);
  }
  return parameter;
}

constexpr std::int64_t size = 10007;

// Parameters and gradients.
struct Buffers {
  Buffer parameters{"parameters", size}, gradients{"gradients", size};

  Buffers() {
    fill(parameters, [](std::int64_t element) { return parameter_at(element); });
  }

  template <class Value>
  static void fill(const Buffer& buffer, const Value& value) {
    const auto host = Kokkos::create_mirror_view(buffer);
    for (std::int64_t i = 0; i < size; ++i) host(i) = value(i);
    Kokkos::deep_copy(buffer, host);
  }

  void load_gradients(int step) {
    fill(gradients, [step](std::int64_t element) { return gradient_at(element, step); });
  }

  void run(AdamW<TestExec>& optimizer, int first_step, int last_step, float gradient_scale) {
    for (int step = first_step; step <= last_step; ++step) {
      load_gradients(step);
      const TestExec exec;
      optimizer.step(exec, parameters, gradients, learning_rates[step - 1], gradient_scale);
      exec.fence();
    }
  }

  std::vector<float> values() const { return floats_of(parameters); }
};

// Sizes around the chunks of 4096 elements that the kernel works on.
const std::vector<ParameterRange> ranges{{0, 100, false},    {100, 101, true},     {101, 4200, true},
                                         {4200, 4200, true}, {4200, 10001, false}, {10001, 10007, true}};

bool decays(std::int64_t element) {
  for (const ParameterRange& range : ranges)
    if (element >= range.begin && element < range.end) return range.decay;
  return false;
}

TEST(AdamW, AgreesWithTheDefinitionInDouble) {
  const AdamWOptions options{.beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-6, .weight_decay = 0.3};
  constexpr int steps = 6;
  AdamW<TestExec> optimizer(TestExec(), options, size, ranges);
  Buffers buffers;
  buffers.run(optimizer, 1, steps, 0.25f);
  EXPECT_EQ(optimizer.steps(), steps);
  const auto values = buffers.values();
  for (std::int64_t i = 0; i < size; ++i)
    ASSERT_NEAR(values[std::size_t(i)], reference(options, i, decays(i), steps, 0.25), 5e-7)
        << "element " << i;
}

template <class T>
void expect_rounded_weights() {
  AdamW<TestExec> with(TestExec(), {}, size, ranges), without(TestExec(), {}, size, ranges);
  Buffers one, other;
  const Array1<T, TestExec> weights("weights", size);
  for (int step = 1; step <= 3; ++step) {
    one.load_gradients(step);
    with.step(TestExec(), one.parameters, one.gradients, learning_rates[step - 1], 0.5f, weights);
    Kokkos::fence();
    other.run(without, step, step, 0.5f);
    EXPECT_TRUE(one.values() == other.values());
    const std::vector<float> rounded = floats_of(weights), expected = other.values();
    for (std::size_t i = 0; i < rounded.size(); ++i)
      ASSERT_EQ(rounded[i], float(T(expected[i]))) << "element " << i;
  }
}

TEST(AdamW, WritesTheWeightsOfComputeInTheSamePass) {
  expect_rounded_weights<float>();
  expect_rounded_weights<bfloat16>();
}

TEST(AdamW, TheWeightsMayBeTheParameters) {
  AdamW<TestExec> with(TestExec(), {}, size, ranges), without(TestExec(), {}, size, ranges);
  Buffers one, other;
  one.load_gradients(1);
  with.step(TestExec(), one.parameters, one.gradients, learning_rates[0], 1.0f, one.parameters);
  Kokkos::fence();
  other.run(without, 1, 1, 1.0f);
  EXPECT_TRUE(one.values() == other.values());
}

TEST(AdamW, ZeroGradientsOnlyDecay) {
  AdamW<TestExec> optimizer(TestExec(), {.weight_decay = 0.5}, size, ranges);
  const Buffer parameters("parameters", size), gradients("gradients", size);
  Kokkos::deep_copy(parameters, 2.0f);
  optimizer.step(TestExec(), parameters, gradients, 0.5);
  Kokkos::fence();
  const auto values = floats_of(parameters);
  for (std::int64_t i = 0; i < size; ++i)
    ASSERT_EQ(values[std::size_t(i)], decays(i) ? 1.5f : 2.0f) << "element " << i;
}

TEST(AdamW, ItsMemoryCountsAsOptimizer) {
  const auto bytes = [] {
    return memory_use(Owned<Array1<float, TestExec>>::kind)
        .current[static_cast<int>(MemoryCategory::optimizer)];
  };
  const std::int64_t before = bytes();
  {
    const AdamW<TestExec> optimizer(TestExec(), {}, size, ranges);
    EXPECT_GE(bytes() - before, 2 * size * 4);
    EXPECT_LT(bytes() - before, 2 * size * 4 + 1000);
  }
  EXPECT_EQ(bytes(), before);
}

TEST(AdamW, RangesOfAShard) {
  using testing::ElementsAre, testing::IsEmpty;
  const std::vector<ParameterRange> all{{0, 10, true}, {10, 30, false}, {30, 40, true}};
  EXPECT_THAT(ranges_of_shard(all, 0, 40), testing::ElementsAreArray(all));
  EXPECT_THAT(ranges_of_shard(all, 5, 12),
              ElementsAre(ParameterRange{0, 5, true}, ParameterRange{5, 7, false}));
  EXPECT_THAT(ranges_of_shard(all, 10, 30), ElementsAre(ParameterRange{0, 20, false}));
  EXPECT_THAT(ranges_of_shard(all, 12, 12), IsEmpty());
}

TEST(AdamW, NamesWhatIsWrong) {
  const struct {
    AdamWOptions options;
    std::vector<ParameterRange> ranges;
    const char* said;
  } cases[] = {{{}, {{0, 10, true}}, "no error"},
               {{}, {{0, 4, true}, {5, 10, true}}, "[5, 10) does not continue at 4"},
               {{}, {{0, 6, true}, {5, 10, true}}, "[5, 10) does not continue at 6"},
               {{}, {{0, 11, true}}, "[0, 11)"},
               {{}, {{0, 9, true}}, "end at 9, but there are 10"},
               {{.beta1 = 1.0}, {{0, 10, true}}, "beta1 = 1"},
               {{.beta2 = -0.1}, {{0, 10, true}}, "beta2 = -0.1"},
               {{.epsilon = 0.0}, {{0, 10, true}}, "epsilon = 0"},
               {{.weight_decay = -1.0}, {{0, 10, true}}, "weight_decay = -1"}};
  for (const auto& [options, parts, said] : cases)
    EXPECT_THAT(error_text([&, &options = options, &parts = parts] {
                  AdamW<TestExec>(TestExec(), options, 10, parts);
                }),
                testing::HasSubstr(said));

  const std::vector<ParameterRange> all{{0, 10, true}};
  AdamW<TestExec> optimizer(TestExec(), {}, 10, all);
  const Buffer ten("ten", 10), nine("nine", 9);
  EXPECT_THROW(optimizer.step(TestExec(), nine, ten, 0.1), Error);
  EXPECT_THROW(optimizer.step(TestExec(), ten, nine, 0.1), Error);
  const Array1<bfloat16, TestExec> nine_weights("nine weights", 9);
  EXPECT_THROW(optimizer.step(TestExec(), ten, ten, 0.1, 1.0f, nine_weights), Error);
  EXPECT_EQ(optimizer.steps(), 0);
}

}  // namespace
}  // namespace annulus::optimizer
