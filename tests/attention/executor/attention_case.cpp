#include "attention/executor/attention_case.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <mutex>

#include "support/attention/rank_rows.hpp"

namespace annulus::test {

namespace {

template <class T>
AttentionResult compute(const Sample& sample, executor::Attention<TestExec, T>& attention,
                        const PositionMap& positions, int rank, Again again) {
  const TestExec exec = rank_instance();
  const RankRows<T> rows(exec, sample, positions);
  const auto passes = [&] {
    rows.fill(exec);
    rows.run(exec, attention);
    return rows.results(exec);
  };
  AttentionResult first = passes();
  if (again != Again::nothing) {
    rows.fill(exec);
    const Array finished = rows.finished(exec, [&](const auto& arrays) { attention.forward(exec, arrays); });
    EXPECT_EQ(finished.values, rounded(first.out, dtype_of<T>).values)
        << "finished is not out on rank " << rank;
  }
  if (again == Again::all) {
    EXPECT_TRUE(same_bits(first, passes())) << "a second run gives other bits on rank " << rank;
  }
  return first;
}

template <class T>
Errors run_with(comm::Communicator& communicator, const Sample& sample,
                executor::Attention<TestExec, T>& attention, const PositionMap& positions, Again again) {
  AttentionResult result = compute(sample, attention, positions, communicator.rank(), again);
  for (const auto array : AttentionResult::arrays()) {
    std::vector<double>& values = (result.*array).values;  // 0 where others have rows
    communicator.all_reduce(Queue(HostExec()), values.data(), values.size(), DType::f64, comm::ReduceOp::sum);
  }
  // All ranks have the same result now: one compares it, and tells the others.
  std::array<double, sizeof(Errors) / sizeof(double)> errors{};
  if (communicator.rank() == 0) {
    const auto norm = [](const auto&... of) { return array_error(of...).norm; };
    errors = std::bit_cast<decltype(errors)>(Errors{errors_of(result, sample.exact),
                                                    errors_of(result, sample.one_rank).largest(),
                                                    errors_of(result, sample.exact, norm)});
  }
  communicator.all_reduce(Queue(HostExec()), errors.data(), errors.size(), DType::f64, comm::ReduceOp::sum);
  return std::bit_cast<Errors>(errors);
}

template <class T>
AttentionResult of_one_rank(const Sample& sample) {
  const auto communicator = comm::make_null();
  const plan::Problem problem = sample.problem(communicator->topology(), Layout());
  executor::Attention<TestExec, T> attention(rank_instance(), *communicator, {plans_of("ring", problem)});
  return compute(sample, attention, problem.shard(0), 0, Again::nothing);
}

}  // namespace

plan::Problem Sample::problem(const Topology& topology, const Layout& layout) const {
  return planning_problem(*this, topology, layout, type);
}

std::shared_ptr<const Sample> make_sample(const std::string& mask, const Shape& shape, DType type) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Sample>> samples;
  const std::lock_guard lock(mutex);
  const std::string key =
      fmt::format("{} {} {} {} {} {} {} {} {} {}", mask, shape.tokens, shape.heads, shape.kv_heads,
                  shape.head_dim, shape.batch, name_of(type), shape.soft_cap, shape.sinks, shape.v_head_dim);
  auto& sample = samples[key];
  if (sample) return sample;
  const AttentionShape of{shape.tokens, shape.head_dim, shape.batch,
                          shape.heads,  shape.kv_heads, shape.v_head_dim};
  auto made = std::make_shared<Sample>(Sample{AttentionProblem::random(of, mask, type), type, {}, {}});
  made->soft_cap = shape.soft_cap;
  if (shape.sinks) made->add_sinks(type);
  made->exact = made->reference();
  made->one_rank = with_storage_type(type, [&]<class T>(T) { return of_one_rank<T>(*made); });
  made->one_rank.dq_size = made->exact.dq_size;
  made->one_rank.dk_size = made->exact.dk_size;
  made->one_rank.d_sinks_size = made->exact.d_sinks_size;
  sample = made;
  return sample;
}

Errors run(comm::Communicator& communicator, const Sample& sample, const plan::Plan& forward,
           const plan::Plan& backward, Again again, const executor::Settings& settings) {
  return with_storage_type(sample.type, [&]<class T>(T) {
    executor::Attention<TestExec, T> attention(rank_instance(), communicator, forward, backward, settings);
    return run_with(communicator, sample, attention, forward.problem.shard(communicator.rank()), again);
  });
}

Errors run(comm::Communicator& communicator, const Sample& sample,
           executor::Attention<TestExec, float>& attention, const PositionMap& positions) {
  return run_with(communicator, sample, attention, positions, Again::forward);
}

Errors run(comm::Communicator& communicator, const Sample& sample, const std::string& schedule,
           const Layout& layout, const executor::Settings& settings) {
  const auto plans = plans_of(schedule, sample.problem(communicator.topology(), layout));
  return run(communicator, sample, plans.forward, *plans.backward, Again::nothing, settings);
}

void expect_correct(const Errors& errors, const std::string& what, double limit) {
  EXPECT_LE(std::max(errors.largest(), errors.from_one_rank), limit) << fmt::format(
      "{}: out {:.2e}, lse {:.2e}, dq {:.2e}, dk {:.2e}, dv {:.2e}, d_sinks {:.2e}, from one "
      "rank {:.2e}",
      what, errors.out, errors.lse, errors.dq, errors.dk, errors.dv, errors.d_sinks, errors.from_one_rank);
}

}  // namespace annulus::test
