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

template <class Exec>
using Buffer = Array1<float, Exec>;

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

// Parameters and gradients of elements [begin, end) of a buffer.
template <class Exec>
struct Shard {
  std::int64_t begin, end;
  Buffer<Exec> parameters, gradients;

  Shard(std::int64_t first, std::int64_t last)
      : begin(first),
        end(last),
        parameters("parameters", last - first),
        gradients("gradients", last - first) {
    fill(parameters, [](std::int64_t element) { return parameter_at(element); });
  }

  template <class Value>
  void fill(const Buffer<Exec>& buffer, const Value& value) const {
    const auto host = Kokkos::create_mirror_view(buffer);
    for (std::int64_t i = begin; i < end; ++i) host(i - begin) = value(i);
    Kokkos::deep_copy(buffer, host);
  }

  void load_gradients(int step) {
    fill(gradients, [step](std::int64_t element) { return gradient_at(element, step); });
  }

  void run(AdamW<Exec>& optimizer, int first_step, int last_step, float gradient_scale) {
    for (int step = first_step; step <= last_step; ++step) {
      load_gradients(step);
      const Exec exec;
      optimizer.step(exec, parameters, gradients, learning_rates[step - 1], gradient_scale);
      exec.fence();
    }
  }

  auto values() const { return floats_of(parameters); }
  void expect_parameters(const Shard& other) const {
    const std::vector<float> mine = values(), expected = other.values();
    for (std::int64_t i = begin; i < end; ++i)
      ASSERT_EQ(mine[std::size_t(i - begin)], expected[std::size_t(i - other.begin)]) << "element " << i;
  }
};

// Sizes around the chunks of 4096 elements that the kernel works on.
const std::vector<ParameterRange> ranges{{0, 100, false},    {100, 101, true},     {101, 4200, true},
                                         {4200, 4200, true}, {4200, 10001, false}, {10001, 10007, true}};
constexpr std::int64_t size = 10007;

bool decays(std::int64_t element) {
  for (const ParameterRange& range : ranges)
    if (element >= range.begin && element < range.end) return range.decay;
  return false;
}

TEST(AdamW, AgreesWithTheDefinitionInDouble) {
  const AdamWOptions options{.beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-6, .weight_decay = 0.3};
  constexpr int steps = 6;
  AdamW<TestExec> optimizer(TestExec(), options, size, ranges);
  Shard<TestExec> shard(0, size);
  shard.run(optimizer, 1, steps, 0.25f);
  EXPECT_EQ(optimizer.steps(), steps);
  const auto values = shard.values();
  for (std::int64_t i = 0; i < size; ++i)
    ASSERT_NEAR(values[std::size_t(i)], reference(options, i, decays(i), steps, 0.25), 5e-7)
        << "element " << i;
}

TEST(AdamW, FirstStepByHand) {
  // After one step m / (1 - beta1) = g and v / (1 - beta2) = g²: the update is lr · g / (|g| + epsilon).
  const std::vector<ParameterRange> all{{0, 2, true}, {2, 3, false}};
  AdamW<TestExec> optimizer(TestExec(), {.epsilon = 0.5, .weight_decay = 0.1}, 3, all);
  const auto parameters = test::uploaded(std::vector(3, 1.0f)),
             gradients = test::uploaded(std::vector{0.5f, -1.5f, 0.5f});
  optimizer.step(TestExec(), parameters, gradients, 0.5);
  Kokkos::fence();
  const auto values = floats_of(parameters);
  EXPECT_NEAR(values[0], 0.95 - 0.5 * 0.5, 1e-6);
  EXPECT_NEAR(values[1], 0.95 + 0.5 * 0.75, 1e-6);
  EXPECT_NEAR(values[2], 1.0 - 0.5 * 0.5, 1e-6);
  EXPECT_NEAR(floats_of(optimizer.first_moment())[1], -0.15, 1e-7);
  EXPECT_NEAR(floats_of(optimizer.second_moment())[1], 0.1125, 1e-7);
}

template <class T>
void expect_rounded_weights() {
  AdamW<TestExec> with(TestExec(), {}, size, ranges), without(TestExec(), {}, size, ranges);
  Shard<TestExec> one(0, size), other(0, size);
  const Array1<T, TestExec> weights("weights", size);
  for (int step = 1; step <= 3; ++step) {
    one.load_gradients(step);
    with.step(TestExec(), one.parameters, one.gradients, learning_rates[step - 1], 0.5f, weights);
    Kokkos::fence();
    other.run(without, step, step, 0.5f);
    one.expect_parameters(other);
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
  Shard<TestExec> one(0, size), other(0, size);
  one.load_gradients(1);
  with.step(TestExec(), one.parameters, one.gradients, learning_rates[0], 1.0f, one.parameters);
  Kokkos::fence();
  other.run(without, 1, 1, 1.0f);
  one.expect_parameters(other);
}

TEST(AdamW, ShardsGiveTheWholeBitForBit) {
  AdamW<TestExec> whole(TestExec(), {}, size, ranges);
  Shard<TestExec> all(0, size);
  all.run(whole, 1, 4, 1.0f);
  for (const auto& [begin, end] :
       {std::pair(0, 50), std::pair(50, 4150), std::pair(4150, 10007), std::pair(7, 7)}) {
    AdamW<TestExec> optimizer(TestExec(), {}, end - begin, ranges_of_shard(ranges, begin, end));
    Shard<TestExec> shard(begin, end);
    shard.run(optimizer, 1, 4, 1.0f);
    shard.expect_parameters(all);
  }
}

TEST(AdamW, ARestoredStateContinuesBitForBit) {
  AdamW<TestExec> straight(TestExec(), {}, size, ranges), before(TestExec(), {}, size, ranges),
      after(TestExec(), {}, size, ranges);
  Shard<TestExec> uninterrupted(0, size), interrupted(0, size);
  uninterrupted.run(straight, 1, 6, 1.0f);
  interrupted.run(before, 1, 3, 1.0f);
  Kokkos::deep_copy(after.first_moment(), before.first_moment());
  Kokkos::deep_copy(after.second_moment(), before.second_moment());
  after.set_steps(before.steps());
  interrupted.run(after, 4, 6, 1.0f);
  EXPECT_EQ(after.steps(), 6);
  interrupted.expect_parameters(uninterrupted);
}

TEST(AdamW, ZeroGradientsOnlyDecay) {
  AdamW<TestExec> optimizer(TestExec(), {.weight_decay = 0.5}, size, ranges);
  const Buffer<TestExec> parameters("parameters", size), gradients("gradients", size);
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
  const Buffer<TestExec> ten("ten", 10), nine("nine", 9);
  EXPECT_THROW(optimizer.step(TestExec(), nine, ten, 0.1), Error);
  EXPECT_THROW(optimizer.step(TestExec(), ten, nine, 0.1), Error);
  const Array1<bfloat16, TestExec> nine_weights("nine weights", 9);
  EXPECT_THROW(optimizer.step(TestExec(), ten, ten, 0.1, 1.0f, nine_weights), Error);
  EXPECT_EQ(optimizer.steps(), 0);
}

}  // namespace
}  // namespace annulus::optimizer
