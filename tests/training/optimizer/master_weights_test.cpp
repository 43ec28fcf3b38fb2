// Master weights in pinned memory of the host, updated there, against those in memory of the execution space.
// In the programs for a device this compares the host's AdamW with the device's, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include <annulus/base/dtype.hpp>

#include "support/arrays.hpp"
#include "support/error_text.hpp"
#include "training/optimizer/master_weights.hpp"

namespace annulus::optimizer {
namespace {

using test::floats_of, test::TestExec, test::uploaded;
using testing::HasSubstr;

constexpr std::int64_t elements = 20011;  // several pieces and chunks, the last ones odd
const std::vector<ParameterRange> decaying{
    {0, 100, false}, {100, 4200, true}, {4200, 4201, false}, {4201, 20000, true}, {20000, elements, false}};
constexpr std::int64_t piece = 3001;

/// Magnitudes from 2^least up to 1.
std::vector<float> random_values(int seed, int least) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::vector<float> values(static_cast<std::size_t>(elements));
  for (float& value : values)
    value = std::ldexp(std::uniform_real_distribution<float>(-1.0f, 1.0f)(random),
                       -static_cast<int>(random() % static_cast<unsigned>(1 - least)));
  return values;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) return false;
  return a.size() == b.size();
}

template <class T>
class Masters : public testing::Test {
 protected:
  using Weights = MasterWeights<TestExec, T>;

  static Weights make(bool offload) {
    return Weights(TestExec(), {.adamw = {.weight_decay = 0.3}, .offload = offload, .piece = piece}, elements,
                   decaying);
  }
  static void fill(Weights& masters, const std::vector<float>& values) {
    const Array1<float, TestExec> from = uploaded(values);
    const TestExec exec;
    masters.fill(exec, 0, elements, [&](std::int64_t first, const Array1<float, TestExec>& to) {
      Kokkos::deep_copy(exec, to, Array1<const float, TestExec>(from.data() + first, to.extent(0)));
    });
    exec.fence();
  }
  /// Masters and both moments.
  static std::array<std::vector<float>, 3> state(const Weights& masters) {
    TestExec().fence();
    return masters.visit(
        TestExec(), [](const auto&, const auto&... buffers) { return std::array{floats_of(buffers)...}; });
  }
};
using Types = testing::Types<float, bfloat16>;
TYPED_TEST_SUITE(Masters, Types);

TYPED_TEST(Masters, OffloadedOnesHaveTheBitsOfTheDevice) {
  const TestExec exec;
  for (const int least : {-12, -148}) {  // the second: squares underflow, moments are denormal
    auto there = this->make(false), offloaded = this->make(true);
    EXPECT_FALSE(there.offloaded());
    EXPECT_TRUE(offloaded.offloaded());
    for (auto* masters : {&there, &offloaded}) this->fill(*masters, random_values(1, -10));
    const Array1<TypeParam, TestExec> a("weights", elements), b("weights", elements);
    there.round(exec, 0, a);
    offloaded.round(exec, 0, b);
    EXPECT_TRUE(same_bits(floats_of(a), floats_of(b)));
    for (int step = 1; step <= 4; ++step) {
      std::vector<float> slopes = random_values(10 + step, least);
      slopes[7] = 1e30f;  // its square overflows
      const Array1<float, TestExec> gradients = uploaded(slopes);
      using WeightPart = typename MasterWeights<TestExec, TypeParam>::WeightPart;
      // All weights in one, in parts with a gap, and none.
      std::vector<WeightPart> of_a{{0, a}}, of_b{{0, b}};
      if (step == 2) {
        const auto cut = [](const Array1<TypeParam, TestExec>& all, std::int64_t begin, std::int64_t end) {
          return WeightPart{begin, Array1<TypeParam, TestExec>(all.data() + begin, end - begin)};
        };
        of_a = {cut(a, 5, 4200), cut(a, 4200, 9999)};
        of_b = {cut(b, 5, 4200), cut(b, 4200, 9999)};
      } else if (step == 3) {
        of_a.clear();
        of_b.clear();
      }
      there.step(exec, gradients, 1e-2 / step, 0.5f, of_a);
      offloaded.step(exec, gradients, 1e-2 / step, 0.5f, of_b);
      exec.fence();
      const auto expected = this->state(there), found = this->state(offloaded);
      EXPECT_TRUE(same_bits(found[0], expected[0])) << "masters of step " << step;
      EXPECT_TRUE(same_bits(found[1], expected[1])) << "first moments of step " << step;
      EXPECT_TRUE(same_bits(found[2], expected[2])) << "second moments of step " << step;
      EXPECT_TRUE(same_bits(floats_of(b), floats_of(a))) << "weights of step " << step;
      EXPECT_NE(expected[0], random_values(1, -10));
    }
    EXPECT_EQ(offloaded.steps(), 4);
  }
}

TYPED_TEST(Masters, AreThereForTheDeviceToo) {
  const TestExec exec;
  const std::vector<float> values = random_values(3, -10);
  for (const bool offload : {false, true}) {
    auto masters = this->make(offload);
    this->fill(masters, values);
    const auto some = masters.resident(exec, 3000, 7001);
    exec.fence();
    EXPECT_EQ(floats_of(some.values), std::vector<float>(values.begin() + 3000, values.begin() + 10001));
    const Array1<TypeParam, TestExec> weights("weights", 5);
    masters.round(exec, 6000, weights);
    exec.fence();
    for (int i = 0; i < 5; ++i)
      EXPECT_EQ(floats_of(weights)[static_cast<std::size_t>(i)],
                float(TypeParam(values[static_cast<std::size_t>(6000 + i)])));
  }
}

TYPED_TEST(Masters, CountWhereTheyLie) {
  const auto host = [](MemoryCategory category) {
    return memory_use(MemoryKind::host).current[static_cast<int>(category)];
  };
  const auto all = [&] {
    return std::array{host(MemoryCategory::parameters), host(MemoryCategory::optimizer),
                      host(MemoryCategory::workspace), memory_use(MemoryKind::device).total_current};
  };
  const auto before = all();
  const auto masters = this->make(true);
  const auto now = all();
  EXPECT_EQ(now[0] - before[0], 4 * elements);
  EXPECT_EQ(now[1] - before[1], 8 * elements);
  EXPECT_EQ(now[2] - before[2], 2 * piece * (4 + (std::is_same_v<TypeParam, float> ? 0 : 2)));
  EXPECT_EQ(now[3], before[3]);
}

TYPED_TEST(Masters, NamesWhatIsWrong) {
  for (const bool offload : {false, true}) {
    auto masters = this->make(offload);
    const TestExec exec;
    const Array1<float, TestExec> gradients("gradients", elements), few("few", elements - 1);
    const Array1<TypeParam, TestExec> some("some", 10);
    using WeightPart = typename MasterWeights<TestExec, TypeParam>::WeightPart;
    const auto error = [&](const Array1<float, TestExec>& slopes, const std::vector<WeightPart>& parts) {
      return error_text([&] { masters.step(exec, slopes, 0.1, 1.0f, parts); });
    };
    EXPECT_THAT(error(few, {}), HasSubstr("20010 gradients 'few' do not fit 20011 master weights"));
    EXPECT_THAT(error(gradients, {{0, some}, {9, some}}), HasSubstr("[9, 19) do not follow 10"));
    EXPECT_THAT(error(gradients, {{20002, some}}), HasSubstr("[20002, 20012) do not follow 0 within 20011"));
    EXPECT_THAT(error_text([&] { masters.round(exec, 20002, some); }), HasSubstr("[20002, 20012) of 20011"));
    EXPECT_EQ(masters.steps(), 0);
  }
}

}  // namespace
}  // namespace annulus::optimizer
