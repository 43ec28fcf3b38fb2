// Muon on whole matrices and on shards of them, against double precision.

#include "training/parameter_sharding/muon_shards.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include <annulus/attention/comm/loopback.hpp>

#include "support/arrays.hpp"

namespace annulus::parameter_sharding::muon {
namespace {

using annulus::test::TestExec, annulus::test::floats_of, annulus::test::uploaded;
using Numbers = std::vector<double>;
using Flat = Array1<float, TestExec>;

constexpr int steps = 20;
constexpr double learning_rate = 0.02;
constexpr float gradient_scale = 0.5f;
const optimizer::AdamWOptions adamw = {};
const Updates updates{.muon = true};

// Matrices that are wide, tall and square; no size is a multiple of another.
model::Config shape() {
  model::Config config;
  config.vocabulary = 53;
  config.layers = 2;
  config.hidden = 48;
  config.heads = 3;
  config.kv_heads = 1;
  config.head_dim = 16;
  config.ffn = 70;
  return config;
}

std::vector<float> random_numbers(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.1f);
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (float& number : numbers) number = normal(random);
  return numbers;
}
std::vector<float> initial(const model::ParameterMap& map) {
  return random_numbers(map.size(), 1);
}
std::vector<float> gradient(const model::ParameterMap& map, int step) {
  return random_numbers(map.size(), 100 + static_cast<std::uint32_t>(step));
}

Numbers multiply(const Numbers& a, const Numbers& b, std::int64_t m, std::int64_t k, std::int64_t n) {
  Numbers product(static_cast<std::size_t>(m * n));
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t l = 0; l < k; ++l)
      for (std::int64_t j = 0; j < n; ++j)
        product[static_cast<std::size_t>(i * n + j)] +=
            a[static_cast<std::size_t>(i * k + l)] * b[static_cast<std::size_t>(l * n + j)];
  return product;
}
Numbers transposed(const Numbers& a, std::int64_t rows, std::int64_t columns) {
  Numbers t(a.size());
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j)
      t[static_cast<std::size_t>(j * rows + i)] = a[static_cast<std::size_t>(i * columns + j)];
  return t;
}

// Newton–Schulz as Jordan et al. write it down, on X itself, whichever side is the shorter.
Numbers orthogonal(Numbers x, std::int64_t rows, std::int64_t columns) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  for (double& value : x) value /= std::sqrt(squares) + 1e-7;
  for (int i = 0; i < 5; ++i) {
    const Numbers a = multiply(x, transposed(x, rows, columns), rows, columns, rows),
                  a2 = multiply(a, a, rows, rows, rows);
    Numbers polynomial(a.size());
    for (std::size_t e = 0; e < a.size(); ++e) polynomial[e] = -4.7750 * a[e] + 2.0315 * a2[e];
    const Numbers more = multiply(polynomial, x, rows, rows, columns);
    for (std::size_t e = 0; e < x.size(); ++e) x[e] = 3.4445 * x[e] + more[e];
  }
  return x;
}

struct Reference {
  Numbers parameters, first_moment, second_moment;

  void step(const model::ParameterMap& map, int number) {
    const std::vector<float> gradients = gradient(map, number);
    for (const model::Parameter& p : map.all()) {
      const bool muon = p.kind == model::TensorKind::matrix;
      const double keep =
          muon || p.kind == model::TensorKind::lm_head ? 1 - learning_rate * adamw.weight_decay : 1;
      Numbers update(static_cast<std::size_t>(p.size()));
      for (std::int64_t i = 0; i < p.size(); ++i) {
        const auto e = static_cast<std::size_t>(p.offset + i);
        const double g = double(gradient_scale) * gradients[e];
        double &m = first_moment[e], &v = second_moment[e];
        m = muon ? updates.momentum * m + g : adamw.beta1 * m + (1 - adamw.beta1) * g;
        v = muon ? 0 : adamw.beta2 * v + (1 - adamw.beta2) * g * g;
        update[static_cast<std::size_t>(i)] =
            muon ? g + updates.momentum * m
                 : m / (1 - std::pow(adamw.beta1, number)) /
                       (std::sqrt(v / (1 - std::pow(adamw.beta2, number))) + adamw.epsilon);
      }
      if (muon) {
        update = orthogonal(std::move(update), p.rows, p.columns);
        for (double& value : update) value *= 0.2 * std::sqrt(double(std::max(p.rows, p.columns)));
      }
      for (std::int64_t i = 0; i < p.size(); ++i) {
        double& w = parameters[static_cast<std::size_t>(p.offset + i)];
        w = keep * w - learning_rate * update[static_cast<std::size_t>(i)];
      }
    }
  }
};

/// What a rank holds of a flat buffer of the model.
std::vector<float> shard_of(const std::vector<float>& whole, const Partition& partition, int rank) {
  std::vector<float> shard(static_cast<std::size_t>(partition.shard_size()));
  for (int unit = 0; unit < partition.units(); ++unit) {
    const model::ParameterUnit part = partition.part(unit, rank);
    std::copy(whole.begin() + part.begin, whole.begin() + part.end,
              shard.begin() + partition.offset_in_shard(unit));
  }
  return shard;
}
void to_whole(const std::vector<float>& shard, const Partition& partition, int rank,
              std::vector<float>& whole) {
  for (int unit = 0; unit < partition.units(); ++unit) {
    const model::ParameterUnit part = partition.part(unit, rank);
    const auto begin = shard.begin() + partition.offset_in_shard(unit);
    std::copy(begin, begin + part.size(), whole.begin() + part.begin);
  }
}

struct State {
  std::vector<float> masters, momentum;
};

/// Masters and momentum after all steps on `ranks` ranks, put together.
State trained(int ranks, DType products = DType::f32) {
  const model::ParameterMap map(shape());
  State state{std::vector<float>(static_cast<std::size_t>(map.size())),
              std::vector<float>(static_cast<std::size_t>(map.size()))};
  comm::run_loopback(Topology::uniform(ranks, ranks), [&](comm::Communicator& world) {
    const TestExec exec;
    const Partition partition(map.units(), ranks, 7);  // which cuts matrices inside of rows
    // The whole of one rank has no padding, and AdamW's ranges are those of the map.
    std::vector<optimizer::ParameterRange> ranges;
    const auto of_map = update_ranges(map, updates);
    for (int unit = 0; unit < partition.units(); ++unit) {
      const model::ParameterUnit part = partition.part(unit, world.rank());
      const std::int64_t offset = partition.offset_in_shard(unit), end = offset + partition.part_size(unit);
      for (const auto& range : optimizer::ranges_of_shard(of_map, part.begin, part.end))
        ranges.push_back({offset + range.begin, offset + range.end, range.decay, range.updated});
      if (offset + part.size() < end) ranges.push_back({offset + part.size(), end, false});
    }
    optimizer::MasterWeights<TestExec, float> masters(exec, {.adamw = adamw}, partition.shard_size(), ranges);
    MuonShards<TestExec> muon(
        map, partition, updates,
        {.weight_decay = adamw.weight_decay, .products = products, .ranks = ranks > 1 ? &world : nullptr});
    Kokkos::deep_copy(masters.masters(), uploaded(shard_of(initial(map), partition, world.rank())));
    const Flat gradients("gradients", static_cast<std::size_t>(partition.shard_size()));
    for (int step = 1; step <= steps; ++step) {
      Kokkos::deep_copy(gradients, uploaded(shard_of(gradient(map, step), partition, world.rank())));
      masters.step(exec, gradients, learning_rate, gradient_scale);
      muon.step(exec, masters, gradients, learning_rate, gradient_scale);
    }
    // Threads of one process write elements of their own.
    to_whole(floats_of(masters.masters()), partition, world.rank(), state.masters);
    to_whole(floats_of(masters.first_moment()), partition, world.rank(), state.momentum);
  });
  return state;
}

/// How far masters and momentum are from double precision, of the way that masters went and of the momentum:
/// the largest of all tensors.
struct Distance {
  double masters = 0, momentum = 0;
};
Distance from_double_precision(const State& state) {
  const model::ParameterMap map(shape());
  const std::vector<float> begin = initial(map);
  Reference reference{{begin.begin(), begin.end()}, Numbers(begin.size()), Numbers(begin.size())};
  for (int step = 1; step <= steps; ++step) reference.step(map, step);
  Distance distance;
  for (const model::Parameter& p : map.all()) {
    double moved = 0, apart = 0, momentum = 0, momentum_apart = 0;
    for (std::int64_t i = p.offset; i < p.offset + p.size(); ++i) {
      const auto e = static_cast<std::size_t>(i);
      moved += std::pow(reference.parameters[e] - begin[e], 2);
      apart += std::pow(reference.parameters[e] - state.masters[e], 2);
      momentum += std::pow(reference.first_moment[e], 2);
      momentum_apart += std::pow(reference.first_moment[e] - state.momentum[e], 2);
    }
    EXPECT_GT(moved, 0) << p.name;
    distance.masters = std::max(distance.masters, std::sqrt(apart / moved));
    distance.momentum = std::max(distance.momentum, std::sqrt(momentum_apart / momentum));
  }
  return distance;
}

TEST(Muon, IsThatOfDoublePrecisionOverTwentySteps) {
  const Distance fp32 = from_double_precision(trained(1)),
                 bf16 = from_double_precision(trained(1, DType::bf16));
  EXPECT_LT(fp32.masters, 1e-5);
  EXPECT_LT(fp32.momentum, 1e-6);
  // Rounding to 8 bits, which five iterations pass on.
  EXPECT_LT(bf16.masters, 0.02);
  EXPECT_LT(bf16.momentum, 1e-6);
}

TEST(Muon, ShardsHaveTheBitsOfTheWhole) {
  for (const DType products : {DType::f32, DType::bf16}) {
    const State whole = trained(1, products);
    for (const int ranks : {2, 3, 5}) {
      const State shards = trained(ranks, products);
      EXPECT_TRUE(whole.masters == shards.masters) << ranks;
      EXPECT_TRUE(whole.momentum == shards.momentum) << ranks;
    }
  }
}

TEST(Muon, SingularValuesComeNearOneAndZerosStay) {
  const TestExec exec;
  optimizer::MuonSizes sizes;
  sizes.include(30, 80);
  for (const DType products : {DType::f32, DType::bf16}) {
    optimizer::Orthogonalizer<TestExec> orthogonalizer(sizes, products);
    const auto space = orthogonalizer.space(exec);
    for (const auto& [rows, columns] : {std::pair(30, 80), {80, 30}, {30, 30}}) {
      const Flat flat(space.matrix(rows, columns).data(), static_cast<std::size_t>(rows * columns));
      Kokkos::deep_copy(flat, uploaded(random_numbers(rows * columns, 3)));
      orthogonalizer.make_orthogonal(exec, space, rows, columns);
      const std::vector<float> made = floats_of(flat);
      double squares = 0;  // of all singular values
      for (const float value : made) squares += double(value) * value;
      EXPECT_NEAR(squares / std::min(rows, columns), 0.85, 0.3) << rows << " × " << columns;
      Kokkos::deep_copy(flat, 0.0f);
      orthogonalizer.make_orthogonal(exec, space, rows, columns);
      EXPECT_EQ(floats_of(flat), std::vector<float>(made.size()));
    }
  }
}

}  // namespace
}  // namespace annulus::parameter_sharding::muon
