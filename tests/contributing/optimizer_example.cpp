// An optimizer (docs/contributing.md): what the update of a flat buffer, or of a rank's shard of it, is
// given. This one is Lion (Chen et al., Symbolic Discovery of Optimization Algorithms), with one moment.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "training/optimizer/adamw.hpp"
#include "training/optimizer/clip.hpp"

namespace annulus::test {
namespace {

using Flat = Array1<float, HostExec>;

class Lion {
 public:
  /// `ranges` say which elements decay.
  Lion(std::int64_t size, std::vector<optimizer::ParameterRange> ranges)
      : ranges_(std::move(ranges)), momentum_("momentum", size) {}

  /// p ← p − lr · (sign(β1 m + (1 − β1) g) + weight_decay · p),  m ← β2 m + (1 − β2) g,
  /// with g = gradient_scale · gradients: what clipping asks for. Element by element: a shard gets the bits
  /// of the whole.
  void step(const HostExec& exec, const Flat& parameters, const Array1<const float, HostExec>& gradients,
            double learning_rate, float gradient_scale) const {
    const auto lr = static_cast<float>(learning_rate);
    const Flat momentum = momentum_;
    for (const optimizer::ParameterRange& range : ranges_) {
      const float decay = range.decay ? 0.1f : 0.0f;
      Kokkos::parallel_for(
          "annulus::test::lion", Kokkos::RangePolicy<HostExec>(exec, range.begin, range.end),
          KOKKOS_LAMBDA(const std::int64_t i) {
            const float g = gradient_scale * gradients(i), mix = 0.9f * momentum(i) + 0.1f * g;
            const float sign = mix > 0 ? 1.0f : mix < 0 ? -1.0f : 0.0f;
            parameters(i) -= lr * (sign + decay * parameters(i));
            momentum(i) = 0.99f * momentum(i) + 0.01f * g;
          });
    }
  }

 private:
  std::vector<optimizer::ParameterRange> ranges_;
  Flat momentum_;
};

TEST(OptimizerExample, ConvergesAndShardsHaveTheBitsOfTheWhole) {
  constexpr std::int64_t size = 100, cut = 37;
  const HostExec exec;
  const std::vector<optimizer::ParameterRange> ranges{{0, 60, false}, {60, size, true}};
  Lion whole(size, ranges), first(cut, optimizer::ranges_of_shard(ranges, 0, cut)),
      second(size - cut, optimizer::ranges_of_shard(ranges, cut, size));
  const Flat p("parameters", size), gradients("gradients", size), in_shards("parameters of two shards", size);
  optimizer::GradientClipper<HostExec> clipper(1.0);
  const optimizer::NormBlocks<HostExec> blocks(exec, std::array{optimizer::NormRange{0, size, 0}}, 1);
  double distance = 0;
  for (int step = 0; step < 300; ++step) {  // of ½ Σ (p − target)²
    distance = 0;
    for (std::int64_t i = 0; i < size; ++i) {
      gradients(i) = p(i) - std::sin(float(i));
      distance += gradients(i) * gradients(i);
    }
    const float scale = clipper.measure(exec, gradients, blocks).scale;
    const double learning_rate = step < 200 ? 1e-2 : 1e-3;
    whole.step(exec, p, gradients, learning_rate, scale);
    first.step(exec, Flat(in_shards.data(), cut), Flat(gradients.data(), cut), learning_rate, scale);
    second.step(exec, Flat(in_shards.data() + cut, size - cut), Flat(gradients.data() + cut, size - cut),
                learning_rate, scale);
    exec.fence("annulus::test: a step is done");
  }
  EXPECT_LT(distance, 0.05);
  for (std::int64_t i = 0; i < size; ++i) EXPECT_EQ(p(i), in_shards(i)) << i;
}

}  // namespace
}  // namespace annulus::test
