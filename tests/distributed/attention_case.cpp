#include "distributed/attention_case.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>

#include <annulus/distributed/attention.hpp>
#include <annulus/plan/schedules.hpp>

namespace annulus::test {

namespace {

/// Uniform in [−1, 1), a function of its arguments alone (splitmix64).
double value(std::uint64_t seed, std::int64_t index) {
  std::uint64_t z = seed * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(index) * 0xd1342543de82ef95u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1.0;
}

double rounded(double x, DType type) {
  const auto single = static_cast<float>(x);
  if (type == DType::bf16) return static_cast<float>(bfloat16(single));
  if (type == DType::f16) return static_cast<float>(float16(single));
  return single;
}

reference::Array random(std::uint64_t seed, const Shape& s, int heads, DType type) {
  reference::Array array(s.batch, heads, s.tokens, s.head_dim);
  for (std::size_t i = 0; i < array.values.size(); ++i) {
    array.values[i] = rounded(2.0 * value(seed, static_cast<std::int64_t>(i)), type);
  }
  return array;
}

/// For each of the five results the squared error, the squared norm and the number of elements; last, how
/// many elements are not finite.
using Sums = std::array<double, 16>;

void accumulate(Sums& sums, std::size_t result, double x, double expected) {
  if (std::isinf(expected) && x == expected) return;
  if (!std::isfinite(x)) sums[15] += 1;
  sums[3 * result] += (x - expected) * (x - expected);
  sums[3 * result + 1] += expected * expected;
  sums[3 * result + 2] += 1;
}

template <class View>
void compare(Sums& sums, std::size_t result, const View& view, const reference::Array& expected,
             const PositionMap& positions) {
  for (std::int64_t b = 0; b < expected.batch; ++b) {
    for (std::int64_t h = 0; h < expected.heads; ++h) {
      for (std::int64_t r = 0; r < positions.count; ++r) {
        const double* row = expected.row(b, h, positions(r));
        for (std::int64_t i = 0; i < expected.width; ++i) {
          if constexpr (View::rank() == 3) {
            accumulate(sums, result, view(b, h, r), row[i]);
          } else {
            accumulate(sums, result, view(b, h, r, i), row[i]);
          }
        }
      }
    }
  }
}

template <class T>
Array4<T, HostExec> shard_of(const reference::Array& array, const PositionMap& positions,
                             const std::string& label) {
  Array4<T, HostExec> shard(label, array.batch, array.heads, positions.count, array.width);
  for (std::int64_t b = 0; b < array.batch; ++b) {
    for (std::int64_t h = 0; h < array.heads; ++h) {
      for (std::int64_t r = 0; r < positions.count; ++r) {
        for (std::int64_t i = 0; i < array.width; ++i) {
          shard(b, h, r, i) = T(static_cast<float>(array.row(b, h, positions(r))[i]));
        }
      }
    }
  }
  return shard;
}

template <class View>
bool same_bits(const View& a, const View& b) {
  return a.size() == 0 || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

template <class T>
Errors run_with(comm::Communicator& communicator, const Sample& sample,
                distributed::Attention<HostExec, T>& attention, const PositionMap& positions, bool repeat) {
  const HostExec exec;
  const auto q = shard_of<T>(sample.q, positions, "q"), k = shard_of<T>(sample.k, positions, "k"),
             v = shard_of<T>(sample.v, positions, "v"), d_out = shard_of<T>(sample.d_out, positions, "d_out");
  const auto like = [&](const auto& view, const char* label) {
    Array4<float, HostExec> array(label, view.extent(0), view.extent(1), view.extent(2), view.extent(3));
    Kokkos::deep_copy(array, std::numeric_limits<float>::quiet_NaN());  // results are written, not added to
    return array;
  };
  const auto out = like(q, "out"), dq = like(q, "dq"), dk = like(k, "dk"), dv = like(v, "dv");
  Array3<float, HostExec> lse("lse", q.extent(0), q.extent(1), q.extent(2));
  Kokkos::deep_copy(lse, std::numeric_limits<float>::quiet_NaN());

  const auto scale = static_cast<float>(sample.scale);
  attention.forward(exec, q, k, v, scale, out, lse);
  attention.backward(exec, q, k, v, scale, out, lse, d_out, dq, dk, dv);
  if (repeat) {
    const auto out2 = like(q, "out2"), dq2 = like(q, "dq2"), dk2 = like(k, "dk2"), dv2 = like(v, "dv2");
    Array3<float, HostExec> lse2("lse2", q.extent(0), q.extent(1), q.extent(2));
    attention.forward(exec, q, k, v, scale, out2, lse2);
    attention.backward(exec, q, k, v, scale, out2, lse2, d_out, dq2, dk2, dv2);
    EXPECT_TRUE(same_bits(out, out2) && same_bits(lse, lse2) && same_bits(dq, dq2) && same_bits(dk, dk2) &&
                same_bits(dv, dv2))
        << "a second run gives other bits on rank " << communicator.rank();
  }

  Sums sums{};
  compare(sums, 0, out, sample.forward.out, positions);
  compare(sums, 1, lse, sample.forward.lse, positions);
  compare(sums, 2, dq, sample.backward.dq, positions);
  compare(sums, 3, dk, sample.backward.dk, positions);
  compare(sums, 4, dv, sample.backward.dv, positions);
  communicator.all_reduce(comm::Queue(exec), sums.data(), sums.size(), DType::f64, comm::ReduceOp::sum);
  const auto relative = [&](std::size_t i) {
    const double* sum = &sums[3 * i];
    return std::sqrt(sum[0] / std::max({sum[1], 0.01 * sum[2], 1e-30}));
  };
  return {relative(0), relative(1), relative(2), relative(3), relative(4), sums[15] == 0};
}

template <class T>
Errors run_as(comm::Communicator& communicator, const Sample& sample, const plan::Plan& forward,
              const plan::Plan& backward, bool repeat) {
  distributed::Attention<HostExec, T> attention(HostExec(), communicator, forward, backward);
  return run_with(communicator, sample, attention, forward.problem.shard(communicator.rank()), repeat);
}

}  // namespace

plan::Problem Sample::problem(const Topology& topology, const Layout& layout) const {
  return {.topology = topology,
          .layout = layout,
          .mask = mask,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .batch = batch,
          .activation = type};
}

std::shared_ptr<const Sample> make_sample(const Mask& mask, const Shape& shape, DType type) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Sample>> samples;
  const std::lock_guard lock(mutex);
  const std::string key = fmt::format("{} {} {} {} {} {} {}", mask.to_string(), shape.tokens, shape.heads,
                                      shape.kv_heads, shape.head_dim, shape.batch, name_of(type));
  auto& sample = samples[key];
  if (sample) return sample;
  auto made = std::make_shared<Sample>();
  made->mask = mask;
  made->heads = shape.heads;
  made->kv_heads = shape.kv_heads;
  made->head_dim = shape.head_dim;
  made->batch = shape.batch;
  made->type = type;
  made->scale = static_cast<float>(1.0 / std::sqrt(shape.head_dim));
  made->q = random(1, shape, shape.heads, type);
  made->k = random(2, shape, shape.kv_heads, type);
  made->v = random(3, shape, shape.kv_heads, type);
  made->d_out = random(4, shape, shape.heads, type);
  made->forward = reference::forward(made->q, made->k, made->v, mask, made->scale);
  made->backward =
      reference::backward(made->q, made->k, made->v, made->forward, made->d_out, mask, made->scale);
  sample = made;
  return sample;
}

std::shared_ptr<const Sample> make_sample(const std::string& mask, const Shape& shape, DType type) {
  return make_sample(Mask::parse(mask, shape.tokens), shape, type);
}

double Errors::worst() const {
  return std::max({out, lse, dq, dk, dv});
}

Errors run(comm::Communicator& communicator, const Sample& sample, const plan::Plan& forward,
           const plan::Plan& backward, bool repeat) {
  switch (sample.type) {
    case DType::bf16:
      return run_as<bfloat16>(communicator, sample, forward, backward, repeat);
    case DType::f16:
      return run_as<float16>(communicator, sample, forward, backward, repeat);
    default:
      return run_as<float>(communicator, sample, forward, backward, repeat);
  }
}

Errors run(comm::Communicator& communicator, const Sample& sample,
           distributed::Attention<HostExec, float>& attention, const PositionMap& positions) {
  return run_with(communicator, sample, attention, positions, false);
}

Errors run(comm::Communicator& communicator, const Sample& sample, const std::string& schedule,
           const Layout& layout) {
  const plan::Problem problem = sample.problem(communicator.topology(), layout);
  return run(communicator, sample, plan::make_plan(schedule, problem, plan::Pass::forward),
             plan::make_plan(schedule, problem, plan::Pass::backward));
}

void expect_correct(const Errors& errors, const std::string& what) {
  EXPECT_TRUE(errors.finite) << what << ": a result is not finite";
  EXPECT_LE(errors.out, tolerance) << what;
  EXPECT_LE(errors.lse, tolerance) << what;
  EXPECT_LE(errors.dq, tolerance) << what;
  EXPECT_LE(errors.dk, tolerance) << what;
  EXPECT_LE(errors.dv, tolerance) << what;
}

}  // namespace annulus::test
