// The host's vector code of AdamW against its definition, element by element, in operations that no compiler
// can contract.
#include <gtest/gtest.h>

#include <annulus/base/dtype.hpp>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "training/optimizer/host_adamw.hpp"

namespace annulus::optimizer::detail {
namespace {

struct Element {
  float parameter, first, second;
};

/// The docstring of AdamW, each operation rounded by itself.
Element by_the_docstring(const AdamWCoefficients& by, float keep, float gradient, Element e) {
  const volatile float g = by.gradient_scale * gradient;
  const volatile float part = by.one_minus_beta1 * g;
  e.first = std::fma(by.beta1, e.first, part);
  const volatile float scaled = by.one_minus_beta2 * g;
  const volatile float square = scaled * g;
  e.second = std::fma(by.beta2, e.second, square);
  const volatile float root = std::sqrt(e.second);
  const volatile float denominator = std::fma(root, by.second_correction, by.epsilon);
  const volatile float step = by.step_size * e.first;
  const volatile float change = step / denominator;
  e.parameter = std::fma(keep, e.parameter, -change);
  return e;
}

/// A number of any magnitude: zeros of both signs, denormals, numbers whose squares overflow.
float number(std::mt19937& random) {
  constexpr std::array special{0.0f, -0.0f, std::numeric_limits<float>::denorm_min(), 1e-40f, 1e-30f,
                               1.0f, 1e25f, std::numeric_limits<float>::max()};
  const auto choice = random() % 32;
  if (choice < special.size()) return special[choice];
  const float magnitude = std::ldexp(1.0f, static_cast<int>(random() % 260) - 149);
  return magnitude * std::uniform_real_distribution<float>(-1.0f, 1.0f)(random);
}

/// Equal bits; which NaN it is does not count.
bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

/// `count` elements from the `shift`-th of their arrays on, so that vectors begin anywhere.
template <class T>
void expect_the_definition(std::int64_t count, std::int64_t shift, const AdamWCoefficients& by, float keep,
                           bool with_weights) {
  std::mt19937 random(static_cast<unsigned>(count * 8 + shift));
  const auto size = static_cast<std::size_t>(count + shift + 3);
  std::vector<float> parameters(size), gradients(size), first(size), second(size);
  for (std::size_t i = 0; i < size; ++i) {
    parameters[i] = number(random);
    gradients[i] = number(random);
    first[i] = number(random);
    second[i] = std::abs(number(random));
  }
  const std::vector<float> p = parameters, m = first, v = second;
  std::vector<T> weights(size, T(7.0f));
  update_run<T>(by, keep, count, parameters.data() + shift, gradients.data() + shift, first.data() + shift,
                second.data() + shift, with_weights ? weights.data() + shift : nullptr);
  for (std::size_t i = 0; i < size; ++i) {
    const bool inside = i >= static_cast<std::size_t>(shift) && i < static_cast<std::size_t>(shift + count);
    const Element expected =
        inside ? by_the_docstring(by, keep, gradients[i], {p[i], m[i], v[i]}) : Element{p[i], m[i], v[i]};
    ASSERT_TRUE(same(first[i], expected.first)) << i << ": " << first[i] << " for " << expected.first;
    ASSERT_TRUE(same(second[i], expected.second)) << i << ": " << second[i] << " for " << expected.second;
    ASSERT_TRUE(same(parameters[i], expected.parameter))
        << i << ": " << parameters[i] << " for " << expected.parameter;
    const float rounded = inside && with_weights ? float(T(expected.parameter)) : 7.0f;
    ASSERT_TRUE(same(float(weights[i]), rounded)) << i << ": " << float(weights[i]) << " for " << rounded;
  }
}

TEST(HostAdamW, HasTheBitsOfTheDefinitionForEveryNumber) {
  const AdamWOptions options{.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
  for (const std::int64_t step : {1, 7, 100000}) {
    const AdamWCoefficients by = adamw_coefficients(options, step, 3e-4, step == 7 ? 0.125f : 1.0f);
    for (const std::int64_t count : {0, 1, 3, 7, 8, 9, 31, 64, 100, 4096, 20011})
      for (const std::int64_t shift : {0, 1, 5})
        for (const bool with_weights : {false, true}) {
          SCOPED_TRACE(testing::Message() << count << " elements from " << shift << " on, step " << step);
          expect_the_definition<float>(count, shift, by, by.keep, with_weights);
          expect_the_definition<bfloat16>(count, shift, by, 1.0f, with_weights);
          if (HasFatalFailure()) return;
        }
  }
}

#ifdef KOKKOS_ENABLE_OPENMP
// With memory.offload_optimizer the host's threads update: docs/running.md says that their number changes no
// bit. A part of a buffer, of which neither end is one of a chunk.
TEST(HostAdamW, DoesNotDependOnTheNumberOfThreads) {
  constexpr std::size_t size = 50021, begin = 37, end = 50000;
  const std::vector<ParameterRange> ranges = {{.begin = 0, .end = 30011, .decay = true},
                                              {.begin = 30011, .end = size, .decay = false}};
  const std::vector<AdamWChunk> chunks = adamw_chunks(size, ranges);
  ASSERT_GE(chunks.size(), 6U) << "work for every thread";
  const AdamWCoefficients by = adamw_coefficients({.weight_decay = 0.1}, 7, 3e-4, 0.125f);
  std::mt19937 random(1);
  std::array<std::vector<float>, 4> start;
  for (std::vector<float>& values : start)
    for (std::size_t i = 0; i < size; ++i)
      values.push_back(std::uniform_real_distribution<float>(0.0f, 1.0f)(random));
  const auto updated = [&](int threads) {
    auto [parameters, first, second, gradients] = start;
    std::vector<bfloat16> weights(end - begin);
    const Kokkos::OpenMP exec(threads);
    update_on_host<Kokkos::OpenMP, bfloat16>(exec, by, chunks,
                                             {.begin = begin,
                                              .end = end,
                                              .parameters = parameters.data(),
                                              .first_moment = first.data(),
                                              .second_moment = second.data(),
                                              .gradients = gradients.data() + begin,
                                              .weights = weights.data()});
    exec.fence("annulus::optimizer: updated");
    std::vector<std::uint32_t> bits;
    for (const std::vector<float>* values : {&parameters, &first, &second})
      for (const float value : *values) bits.push_back(std::bit_cast<std::uint32_t>(value));
    for (const bfloat16 weight : weights) bits.push_back(std::bit_cast<std::uint32_t>(float(weight)));
    return bits;
  };
  const std::vector<std::uint32_t> one = updated(1);
  EXPECT_NE(one[begin], std::bit_cast<std::uint32_t>(start[0][begin])) << "something is updated";
  for (const int threads : {2, 3}) EXPECT_EQ(updated(threads), one) << threads << " threads";
}
#endif

}  // namespace
}  // namespace annulus::optimizer::detail
