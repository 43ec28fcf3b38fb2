// Local attention beside transfers of NCCL: the same bits each time.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <annulus/attention/kernels/local.hpp>
#include <annulus/attention/sequence/layout.hpp>

#include "attention/executor/nccl_fixture.hpp"
#include "attention/kernels/mask_on.hpp"
#include "base/kokkos/execution/event.hpp"
#include "support/attention/attention_problem.hpp"
#include "support/attention/attention_rows.hpp"
#include "support/exec.hpp"

namespace annulus::test {
namespace {

/// Messages around the ring of all ranks, on a stream of their own.
class RingTraffic {
 public:
  static constexpr int channels = 2;

  RingTraffic(comm::Communicator& nccl, std::size_t numbers) : nccl_(nccl) {
    for (Numbers& numbers_of_peer : received_) numbers_of_peer = Numbers("annulus::test::received", numbers);
    sent_ = Numbers("annulus::test::sent", numbers);
    Kokkos::deep_copy(sent_, nccl.rank() + 1);
    Kokkos::fence("annulus::test: the messages are there");
  }

  /// Begins when `exec` is done with what it has, and travels beside what it gets next.
  void start(const TestExec& exec, int channel) {
    const int ranks = nccl_.size(), rank = nccl_.rank();
    begin_.record(exec);
    begin_.block(stream_);
    const comm::Send sends[] = {comm::send_view(sent_, (rank + 1) % ranks)};
    const comm::Receive receives[] = {comm::receive_view(received_[channel], (rank + ranks - 1) % ranks)};
    requests_[channel] = nccl_.exchange(stream_, sends, receives, channel);
  }
  /// What `exec` gets next waits for all messages.
  void finish(const TestExec& exec) {
    for (comm::Request& request : requests_) request.wait();
    end_.record(stream_);
    end_.block(exec);
  }
  void expect_received() const {
    const int expected = (nccl_.rank() + nccl_.size() - 1) % nccl_.size() + 1;
    for (const Numbers& numbers : received_) {
      const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), numbers);
      EXPECT_EQ(std::count(host.data(), host.data() + host.size(), expected),
                static_cast<std::ptrdiff_t>(host.size()));
    }
  }

 private:
  using Numbers = Array1<std::int32_t, TestExec>;

  comm::Communicator& nccl_;
  const TestExec stream_ = rank_instance();
  Numbers sent_;
  std::array<Numbers, channels> received_;
  Event begin_, end_;
  std::array<comm::Request, channels> requests_;
};

/// A result of local attention, and what it was the first time.
struct RepeatedResult {
  using Values = Array4<float, TestExec>;

  std::string name;
  Values values, first;

  RepeatedResult(std::string of, const Array& shape, std::int64_t rows, std::int64_t width)
      : name(std::move(of)),
        values("annulus::test::values", shape.batch, shape.heads, rows, width),
        first("annulus::test::first", shape.batch, shape.heads, rows, width) {}

  /// (batch, heads, rows) of a result of width 1.
  Strided3<float, TestExec> rows() const {
    return Kokkos::subview(values, Kokkos::ALL, Kokkos::ALL, Kokkos::ALL, 0);
  }
  void clear(const TestExec& exec) const {
    Kokkos::deep_copy(exec, values, std::numeric_limits<float>::quiet_NaN());
  }
  void keep(const TestExec& exec) const { Kokkos::deep_copy(exec, first, values); }
  bool is_finite() const {
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), first);
    return std::all_of(host.data(), host.data() + host.size(),
                       [](float value) { return std::isfinite(value); });
  }
  /// Counts elements whose bits are not those of the first time; the host does not wait.
  void count_differences(const TestExec& exec, const Array1<std::int64_t, TestExec>& counts,
                         std::size_t at) const {
    const float *const now = values.data(), *const before = first.data();
    Kokkos::parallel_reduce(
        "annulus::test::count_differences",
        Kokkos::RangePolicy<TestExec>(exec, 0, static_cast<std::int64_t>(values.size())),
        KOKKOS_LAMBDA(std::int64_t i, std::int64_t & sum) {
          sum += Kokkos::bit_cast<std::uint32_t>(now[i]) != Kokkos::bit_cast<std::uint32_t>(before[i]);
        },
        Kokkos::subview(counts, at));
  }
};

/// A rank's queries against one block of keys after the other, both passes. Their sums are fresh in the first
/// step, and each later one adds to out, LSE and dQ of those before.
class RepeatedSteps {
 public:
  static constexpr std::int64_t rows = 3000;

  RepeatedSteps(const TestExec& exec, int steps, int rank)
      : problem_(AttentionProblem::random(
            {.tokens = rows * steps, .head_dim = 128, .batch = 1, .heads = 8, .kv_heads = 2}, "causal",
            DType::bf16, 1.0, static_cast<std::uint64_t>(rank) + 1)),
        mask_(exec, problem_.mask),
        q_positions_(shard(steps, 0)),
        q_(rows_on<bfloat16>(exec, problem_.q, q_positions_)),
        d_out_(rows_on<bfloat16>(exec, problem_.d_out, q_positions_)),
        d_(exec, Storage::dense, 1, problem_.shape.heads, rows, 1) {
    results_.emplace_back("out", problem_.q, rows, 128);
    results_.emplace_back("lse", problem_.q, rows, 1);
    results_.emplace_back("dq", problem_.q, rows, 128);
    for (int step = 0; step < steps; ++step) {
      kv_positions_.push_back(shard(steps, step));
      k_.push_back(rows_on<bfloat16>(exec, problem_.k, kv_positions_.back()));
      v_.push_back(rows_on<bfloat16>(exec, problem_.v, kv_positions_.back()));
      results_.emplace_back(fmt::format("dk of step {}", step), problem_.k, rows, 128);
      results_.emplace_back(fmt::format("dv of step {}", step), problem_.v, rows, 128);
    }
  }

  const std::vector<RepeatedResult>& results() const { return results_; }

  /// Calls before_pass(0) in front of the forward pass and before_pass(1) in front of the backward pass. The
  /// host does not wait.
  template <class BeforePass>
  void run(const TestExec& exec, int free_sms, const BeforePass& before_pass) const {
    for (const RepeatedResult& result : results_) result.clear(exec);
    const auto &out = results_[0], &lse = results_[1], &dq = results_[2];
    attention::KernelOptions options = attention::Kernel::hopper;
    options.deterministic = true;
    options.free_sms = free_sms;
    options.fresh_dkv = true;
    before_pass(0);
    for (std::size_t step = 0; step < k_.size(); ++step) {
      options.fresh_out = step == 0;
      attention::forward(exec, operands(step), out.values, lse.rows(), options);
    }
    attention::row_dot<TestExec, bfloat16>(exec, out.values, d_out_.read(), d_.rows());
    before_pass(1);
    for (std::size_t step = 0; step < k_.size(); ++step) {
      options.fresh_dq = step == 0;
      attention::backward<TestExec, bfloat16>(exec, operands(step),
                                              {.d_out = d_out_.read(),
                                               .lse = lse.rows(),
                                               .d = d_.read_rows(),
                                               .dq = dq.values,
                                               .dk = results_[3 + 2 * step].values,
                                               .dv = results_[4 + 2 * step].values},
                                              options);
    }
  }

 private:
  /// All queries of a shard see keys of every shard.
  static PositionMap shard(int steps, int step) {
    return Layout(Layout::Kind::striped).shard(rows * steps, steps, step);
  }
  attention::Operands<bfloat16, TestExec> operands(std::size_t step) const {
    return {q_.read(),
            k_[step].read(),
            v_[step].read(),
            q_positions_,
            kv_positions_[step],
            mask_.rule(),
            static_cast<float>(problem_.scale)};
  }

  AttentionProblem problem_;
  attention::MaskOn<TestExec> mask_;
  PositionMap q_positions_;
  std::vector<PositionMap> kv_positions_;
  StridedArray<bfloat16, TestExec> q_, d_out_;
  std::vector<StridedArray<bfloat16, TestExec>> k_, v_;
  StridedArray<float, TestExec> d_;
  std::vector<RepeatedResult> results_;
};

/// Runs the steps once alone and 100 times beside transfers of 2 · `megabytes` MiB in each direction.
void expect_the_same_bits(comm::Communicator& nccl, int steps, std::size_t megabytes) {
  constexpr int launches = 100;
  constexpr int free_sms[] = {0, 16, 1, 67};
  const TestExec exec = rank_instance();
  const RepeatedSteps attention(exec, steps, nccl.rank());
  const std::vector<RepeatedResult>& results = attention.results();
  attention.run(exec, 0, [](int) {});
  for (const RepeatedResult& result : results) result.keep(exec);
  exec.fence("annulus::test: the first launch is done");
  for (const RepeatedResult& result : results) EXPECT_TRUE(result.is_finite()) << result.name;

  RingTraffic traffic(nccl, (megabytes << 20) / sizeof(std::int32_t));
  const Array1<std::int64_t, TestExec> differences("annulus::test::differences", launches * results.size());
  for (int launch = 0; launch < launches; ++launch) {
    attention.run(exec, free_sms[launch % 4], [&](int pass) { traffic.start(exec, pass); });
    for (std::size_t i = 0; i < results.size(); ++i)
      results[i].count_differences(exec, differences, static_cast<std::size_t>(launch) * results.size() + i);
    traffic.finish(exec);
  }
  exec.fence("annulus::test: all launches are done");
  traffic.expect_received();
  const auto counts = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), differences);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    EXPECT_EQ(counts(i), 0) << fmt::format("elements of {} in launch {}, {} SMs left to others",
                                           results[i % results.size()].name, i / results.size(),
                                           free_sms[i / results.size() % 4]);
  }
}

class RepeatedBesideNccl : public DistributedNccl, public testing::WithParamInterface<int> {};

// Blocks take SMs as transfers leave them, and turns at dQ in the order of their keys all the same.
TEST_P(RepeatedBesideNccl, TheSameBits) {
  if (attention::kernel_for<TestExec, bfloat16>(128) != attention::Kernel::hopper)
    GTEST_SKIP() << "the kernel hopper does not run on this GPU: it is none of Hopper's";
  const auto nccl = comm::make_nccl(mpi_.world());
  // Between GPUs a transfer then takes about as long as the pass beside it; ranks that share one have sockets
  // between them.
  const bool shared = mpi_.size() > Kokkos::num_devices();
  expect_the_same_bits(*nccl, GetParam(), shared ? 4 : 32);
}

// One step: all results are fresh. Two: dQ of the second holds that of the first.
INSTANTIATE_TEST_SUITE_P(Steps, RepeatedBesideNccl, testing::Values(1, 2), testing::PrintToStringParamName());

}  // namespace
}  // namespace annulus::test
