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
#include <utility>

#include <annulus/base/splitmix.hpp>
#include <annulus/comm/null.hpp>
#include <annulus/distributed/attention.hpp>
#include <annulus/plan/schedules.hpp>

namespace annulus::test {

namespace {

/// Uniform in [−1, 1), a function of its arguments alone (splitmix64).
double value(std::uint64_t seed, std::int64_t index) {
  const std::uint64_t z =
      mix_bits(seed * splitmix_step + static_cast<std::uint64_t>(index) * 0xd1342543de82ef95u);
  return static_cast<double>(z >> 11) * 0x1p-52 - 1.0;
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

/// Squared error, squared norm and number of elements of the five results against the reference, then of the
/// five against one rank; last, how many elements are not finite.
using Sums = std::array<double, 31>;

void accumulate(Sums& sums, std::size_t result, double x, double expected) {
  if (std::isinf(expected) && x == expected) return;
  if (!std::isfinite(x)) sums[30] += 1;
  sums[3 * result] += (x - expected) * (x - expected);
  sums[3 * result + 1] += expected * expected;
  sums[3 * result + 2] += 1;
}

/// Calls `visit` with each element of a rank's view and its indices in the array of the whole sequence.
template <class View, class Visit>
void for_elements(const View& view, const PositionMap& positions, const Visit& visit) {
  for (std::size_t b = 0; b < view.extent(0); ++b) {
    for (std::size_t h = 0; h < view.extent(1); ++h) {
      for (std::int64_t r = 0; r < positions.count; ++r) {
        if constexpr (View::rank() == 3) {
          visit(view(b, h, r), b, h, positions(r), 0);
        } else {
          for (std::size_t i = 0; i < view.extent(3); ++i) visit(view(b, h, r, i), b, h, positions(r), i);
        }
      }
    }
  }
}

/// The array in the memory of the space under test; itself where that is the host's.
template <class View>
auto on_device(const View& host) {
  return Kokkos::create_mirror_view_and_copy(TestExec::memory_space(), host);
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

/// A rank's part of the results.
struct Shards {
  Array4<float, HostExec> out, dq, dk, dv;
  Array3<float, HostExec> lse;

  template <class Q, class K>
  Shards(const Q& q, const K& k)
      : out("out", q.layout()),
        dq("dq", q.layout()),
        dk("dk", k.layout()),
        dv("dv", k.layout()),
        lse("lse", q.extent(0), q.extent(1), q.extent(2)) {
    for (const auto& view : {out, dq, dk, dv}) {  // results are written, not added to
      Kokkos::deep_copy(view, std::numeric_limits<float>::quiet_NaN());
    }
    Kokkos::deep_copy(lse, std::numeric_limits<float>::quiet_NaN());
  }

  /// Calls `visit` with each view, its place among the results, and its array in `results`.
  template <class Visit>
  void for_each(auto& results, const Visit& visit) const {
    visit(out, 0, results.out);
    visit(lse, 1, results.lse);
    visit(dq, 2, results.dq);
    visit(dk, 3, results.dk);
    visit(dv, 4, results.dv);
  }
};

/// `finished` has the bits of out, rounded to T, whichever way it lies in memory.
template <class T>
void expect_finished(const TestExec& exec, distributed::Attention<TestExec, T>& attention,
                     typename distributed::Attention<TestExec, T>::Forward arrays,
                     const Array4<float, HostExec>& expected, int rank) {
  arrays.out = Array4<float, TestExec>("out", expected.layout());
  Kokkos::deep_copy(arrays.out, std::numeric_limits<float>::quiet_NaN());
  const Array4<T, TestExec> joined("joined", expected.extent(0), expected.extent(2), expected.extent(1),
                                   expected.extent(3));  // (batch, rows, heads, head_dim)
  Kokkos::deep_copy(joined, T(std::numeric_limits<float>::quiet_NaN()));
  arrays.finished = Strided4<T, TestExec>(
      joined.data(),
      Kokkos::LayoutStride(expected.extent(0), joined.stride(0), expected.extent(1), joined.stride(2),
                           expected.extent(2), joined.stride(1), expected.extent(3), 1));
  attention.forward(exec, arrays);
  exec.fence("annulus::test: finished");
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), joined);
  bool same = true;
  for (std::size_t b = 0; b < expected.extent(0); ++b)
    for (std::size_t h = 0; h < expected.extent(1); ++h)
      for (std::size_t r = 0; r < expected.extent(2); ++r)
        for (std::size_t i = 0; i < expected.extent(3); ++i) {
          const T want(expected(b, h, r, i));
          same = same && std::memcmp(&host(b, r, h, i), &want, sizeof want) == 0;
        }
  EXPECT_TRUE(same) << "finished is not out on rank " << rank;
}

template <class T>
Shards compute(const Sample& sample, distributed::Attention<TestExec, T>& attention,
               const PositionMap& positions, int rank, Again again) {
  const TestExec exec = rank_instance();
  const auto shard = [&](const reference::Array& array, const char* label) {
    return on_device(shard_of<T>(array, positions, label));
  };
  const auto q = shard(sample.q, "q"), k = shard(sample.k, "k"), v = shard(sample.v, "v"),
             d_out = shard(sample.d_out, "d_out");
  const auto passes = [&] {
    const Shards r(q, k);
    const auto out = on_device(r.out), dq = on_device(r.dq), dk = on_device(r.dk), dv = on_device(r.dv);
    const auto lse = on_device(r.lse);
    const Array3<float, TestExec> d("d", lse.layout());
    const auto scale = static_cast<float>(sample.scale);
    attention.forward(exec, {.q = q, .k = k, .v = v, .scale = scale, .out = out, .lse = lse});
    attention::row_dot<TestExec, T>(exec, out, d_out, d);
    attention.backward(exec, {.q = q,
                              .k = k,
                              .v = v,
                              .scale = scale,
                              .lse = lse,
                              .d = d,
                              .d_out = d_out,
                              .dq = dq,
                              .dk = dk,
                              .dv = dv});
    exec.fence("annulus::test: both passes are done");
    Kokkos::deep_copy(r.out, out);
    Kokkos::deep_copy(r.lse, lse);
    Kokkos::deep_copy(r.dq, dq);
    Kokkos::deep_copy(r.dk, dk);
    Kokkos::deep_copy(r.dv, dv);
    return r;
  };
  const Shards first = passes();
  if (again != Again::nothing)
    expect_finished(exec, attention,
                    {.q = q,
                     .k = k,
                     .v = v,
                     .scale = static_cast<float>(sample.scale),
                     .out = {},
                     .lse = on_device(first.lse)},
                    first.out, rank);
  if (again == Again::all) {
    const Shards second = passes();
    EXPECT_TRUE(same_bits(first.out, second.out) && same_bits(first.lse, second.lse) &&
                same_bits(first.dq, second.dq) && same_bits(first.dk, second.dk) &&
                same_bits(first.dv, second.dv))
        << "a second run gives other bits on rank " << rank;
  }
  return first;
}

template <class T>
Errors run_with(comm::Communicator& communicator, const Sample& sample,
                distributed::Attention<TestExec, T>& attention, const PositionMap& positions, Again again) {
  const Shards shards = compute(sample, attention, positions, communicator.rank(), again);
  Sums sums{};
  const auto compare = [&](const Results& results, std::size_t first) {
    shards.for_each(results, [&](const auto& view, std::size_t result, const reference::Array& expected) {
      for_elements(view, positions, [&](double x, auto b, auto h, auto token, auto i) {
        accumulate(sums, first + result, x, expected.row(b, h, token)[i]);
      });
    });
  };
  compare(sample.exact, 0);
  compare(sample.one_rank, 5);
  communicator.all_reduce(Queue(HostExec()), sums.data(), sums.size(), DType::f64, comm::ReduceOp::sum);
  const auto relative = [&](std::size_t i) {
    const double* sum = &sums[3 * i];
    return std::sqrt(sum[0] / std::max({sum[1], 0.01 * sum[2], 1e-30}));
  };
  Errors errors{relative(0), relative(1), relative(2), relative(3), relative(4)};
  for (std::size_t i = 5; i < 10; ++i) errors.from_one_rank = std::max(errors.from_one_rank, relative(i));
  errors.finite = sums[30] == 0;
  return errors;
}

template <class T>
Errors run_as(comm::Communicator& communicator, const Sample& sample, const plan::Plan& forward,
              const plan::Plan& backward, Again again, const distributed::Settings& settings) {
  distributed::Attention<TestExec, T> attention(rank_instance(), communicator, forward, backward, settings);
  return run_with(communicator, sample, attention, forward.problem.shard(communicator.rank()), again);
}

template <class T>
Results of_one_rank(const Sample& sample) {
  const auto communicator = comm::make_null();
  const plan::Problem problem = sample.problem(communicator->topology(), Layout());
  distributed::Attention<TestExec, T> attention(rank_instance(), *communicator,
                                                plan::make_ring(problem, plan::Pass::forward),
                                                plan::make_ring(problem, plan::Pass::backward));
  const PositionMap positions = problem.shard(0);
  Results results = sample.exact;  // for the shapes
  compute(sample, attention, positions, 0, Again::nothing)
      .for_each(results, [&](const auto& view, std::size_t, reference::Array& array) {
        for_elements(view, positions,
                     [&](double x, auto b, auto h, auto token, auto i) { array.row(b, h, token)[i] = x; });
      });
  return results;
}

/// Calls `run` with a null pointer to the sample's storage type.
template <class Run>
auto with_type(DType type, const Run& run) {
  switch (type) {
    case DType::bf16:
      return run(static_cast<bfloat16*>(nullptr));
    case DType::f16:
      return run(static_cast<float16*>(nullptr));
    default:
      return run(static_cast<float*>(nullptr));
  }
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
  const auto forward = reference::forward(made->q, made->k, made->v, mask.rule(), made->scale);
  auto backward = reference::backward({.q = made->q,
                                       .k = made->k,
                                       .v = made->v,
                                       .result = forward,
                                       .d_out = made->d_out,
                                       .mask = mask.rule(),
                                       .scale = made->scale});
  made->exact = {forward.out, forward.lse, std::move(backward.dq), std::move(backward.dk),
                 std::move(backward.dv)};
  made->one_rank = with_type(type, [&]<class T>(T*) { return of_one_rank<T>(*made); });
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
           const plan::Plan& backward, Again again, const distributed::Settings& settings) {
  return with_type(sample.type, [&]<class T>(T*) {
    return run_as<T>(communicator, sample, forward, backward, again, settings);
  });
}

Errors run(comm::Communicator& communicator, const Sample& sample,
           distributed::Attention<TestExec, float>& attention, const PositionMap& positions) {
  return run_with(communicator, sample, attention, positions, Again::forward);
}

Errors run(comm::Communicator& communicator, const Sample& sample, const std::string& schedule,
           const Layout& layout, const distributed::Settings& settings) {
  const plan::Problem problem = sample.problem(communicator.topology(), layout);
  return run(communicator, sample, plan::make_plan(schedule, problem, plan::Pass::forward),
             plan::make_plan(schedule, problem, plan::Pass::backward), Again::nothing, settings);
}

void expect_correct(const Errors& errors, const std::string& what, double limit) {
  EXPECT_TRUE(errors.finite) << what << ": a result is not finite";
  EXPECT_LE(errors.out, limit) << what;
  EXPECT_LE(errors.lse, limit) << what;
  EXPECT_LE(errors.dq, limit) << what;
  EXPECT_LE(errors.dk, limit) << what;
  EXPECT_LE(errors.dv, limit) << what;
  EXPECT_LE(errors.from_one_rank, limit) << what << ": against one rank";
}

}  // namespace annulus::test
