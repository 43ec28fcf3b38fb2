#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "attention/comm/suite/numbers.hpp"
#include "attention/comm/suite/suite.hpp"

namespace annulus::comm::suite {

namespace {

/// The counts take every way: none, fewer than ranks, gathered whole, one round, uneven blocks.
template <class T>
void reductions_of(Communicator& comm) {
  for (const std::size_t count : {0, 1, 2, 7, 1000, 40000, 65537})
    check_all_reduce<T>(comm, count, ReduceOp::sum);
  for (const std::size_t count : {0, 1, 13, 20011}) check_reduce_scatter<T>(comm, count, ReduceOp::sum);
  for (const ReduceOp op : {ReduceOp::max, ReduceOp::min}) {
    check_all_reduce<T>(comm, 333, op);
    check_all_reduce<T>(comm, 40000, op);
    check_reduce_scatter<T>(comm, 50, op);
  }
}

/// More than one round of the bounded workspace, with a last round that is not full.
void reductions_in_rounds(Communicator& comm) {
  check_all_reduce<float>(comm, 2'200'001, ReduceOp::sum);
  check_reduce_scatter<float>(comm, 1'100'003 / static_cast<std::size_t>(comm.size()) * 2, ReduceOp::sum);
}

/// The order of the sum decides whether small numbers survive: from the left the last one would.
void sum_in_rank_order(Communicator& comm) {
  if (comm.size() < 3) return;
  const float mine[] = {1.0f, 1e8f, -1e8f, 3.0f};
  const float value = comm.rank() < 4 ? mine[comm.rank()] : 0.0f;
  EXPECT_EQ(comm.all_reduce_value(value, ReduceOp::sum), 0.0f);  // (1 + 1e8) + (−1e8 + 3)
  std::vector<float> many(100000, value);
  comm.all_reduce(host_queue(), many.data(), many.size(), DType::f32, ReduceOp::sum);
  EXPECT_EQ(many, std::vector<float>(100000, 0.0f));
}

/// bf16 sums are formed in f32: sixteenths do not vanish beside 16.
void half_precision_rounds_once(Communicator& comm) {
  const float mine = comm.rank() == 0 ? 16.0f : 0.0625f;
  const float wanted = 16.0f + 0.0625f * static_cast<float>(comm.size() - 1);
  const Kokkos::View<bfloat16*, Kokkos::HostSpace> view("view", 3);
  Kokkos::deep_copy(view, bfloat16(mine));
  comm.all_reduce(host_queue(), view);
  EXPECT_EQ(view(2).bits, bfloat16(wanted).bits);
}

void nan_survives(Communicator& comm) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int who = 0; who < comm.size(); ++who)
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min})
      EXPECT_TRUE(std::isnan(comm.all_reduce_value(comm.rank() == who ? nan : 1.0, op)));
}

void broadcast(Communicator& comm) {
  for (int root = 0; root < comm.size(); ++root)
    for (const std::size_t count : {0, 1, 30000}) {
      auto data = pattern(count, comm.rank(), 1);
      comm.broadcast(host_queue(), data.data(), count * sizeof data[0], root);
      EXPECT_EQ(data, pattern(count, root, 1));
    }
}

void all_gather(Communicator& comm) {
  const std::size_t ranks = static_cast<std::size_t>(comm.size());
  for (const std::size_t count : {0, 1, 5000}) {
    std::vector<std::int64_t> wanted, got(count * ranks);
    for (int r = 0; r < comm.size(); ++r) {
      const auto part = pattern(count, r, 2);
      wanted.insert(wanted.end(), part.begin(), part.end());
    }
    const auto mine = pattern(count, comm.rank(), 2);
    comm.all_gather(host_queue(), mine.data(), got.data(), count * sizeof mine[0]);
    EXPECT_EQ(got, wanted);
    // In place: this rank's block is where it belongs already.
    std::vector<std::int64_t> whole(count * ranks);
    const std::size_t own = static_cast<std::size_t>(comm.rank()) * count;
    std::copy(mine.begin(), mine.end(), whole.begin() + static_cast<std::ptrdiff_t>(own));
    comm.all_gather(host_queue(), whole.data() + own, whole.data(), count * sizeof mine[0]);
    EXPECT_EQ(whole, wanted);
  }
}

void all_to_all(Communicator& comm) {
  for (const std::size_t count : {0, 1, 3000}) {
    std::vector<std::int64_t> out, wanted, got(count * static_cast<std::size_t>(comm.size()));
    for (int r = 0; r < comm.size(); ++r) {
      const auto to = pattern(count, comm.rank(), r), from = pattern(count, r, comm.rank());
      out.insert(out.end(), to.begin(), to.end());
      wanted.insert(wanted.end(), from.begin(), from.end());
    }
    comm.all_to_all(host_queue(), out.data(), got.data(), count * sizeof out[0]);
    EXPECT_EQ(got, wanted);
  }
  std::vector<std::int64_t> data(static_cast<std::size_t>(comm.size()));
  EXPECT_THAT(error_text([&] { comm.all_to_all(host_queue(), data.data(), data.data(), 8); }),
              testing::HasSubstr("in place"));
}

void views_in_collectives(Communicator& comm) {
  const std::size_t ranks = static_cast<std::size_t>(comm.size());
  using View = Kokkos::View<double*, Kokkos::HostSpace>;
  const View mine("mine", 4), all("all", 4 * ranks), sum("sum", 4);
  Kokkos::deep_copy(mine, comm.rank() + 1);
  comm.start_all_gather(host_queue(), mine, all, 0).wait();
  for (std::size_t i = 0; i < 4 * ranks; ++i) EXPECT_EQ(all(i), static_cast<double>(i / 4 + 1));
  comm.start_reduce_scatter(host_queue(), all, sum, 0).wait();
  EXPECT_EQ(sum(3), static_cast<double>(comm.size() * (comm.rank() + 1)));
  comm.all_reduce(host_queue(), mine, ReduceOp::max);
  EXPECT_EQ(mine(0), comm.size());
  EXPECT_THAT(error_text([&] { comm.start_all_gather(host_queue(), mine, View("small", 3), 0); }),
              testing::HasSubstr("'small' has 3"));
  EXPECT_THAT(error_text([&] { comm.start_reduce_scatter(host_queue(), View("odd", 5), mine, 0); }),
              testing::HasSubstr("'odd' has 5"));
}

/// No rank leaves before all have come: what each wrote before is seen by all after.
void barrier(Communicator& comm) {
  for (int round = 0; round < 20; ++round) {
    std::int64_t mine = round, theirs = -1;
    Request request =
        exchange_one(comm, {&mine, sizeof mine, next_of(comm)}, {&theirs, sizeof theirs, previous_of(comm)});
    comm.barrier();
    request.wait();
    EXPECT_EQ(theirs, round);
  }
}

/// Exchanges under way do not get into the collectives, on whatever channel.
void collectives_beside_exchanges(Communicator& comm) {
  const auto out = pattern(4000, comm.rank(), 9);
  std::vector<std::int64_t> in(4000);
  Request request = receive_one(comm, receive_of(in, previous_of(comm)), 0);
  check_all_reduce<float>(comm, 100, ReduceOp::sum);
  check_all_reduce<float>(comm, 50000, ReduceOp::sum);
  comm.barrier();
  send_one(comm, send_of(out, next_of(comm)), 0).wait();
  request.wait();
  EXPECT_EQ(in, pattern(4000, previous_of(comm), 9));
}

}  // namespace

std::vector<Case> collective_cases() {
  return {{"ReductionsF32", reductions_of<float>},
          {"ReductionsF64", reductions_of<double>},
          {"ReductionsBf16", reductions_of<bfloat16>},
          {"ReductionsF16", reductions_of<float16>},
          {"ReductionsI32", reductions_of<std::int32_t>},
          {"ReductionsI64", reductions_of<std::int64_t>},
          {"ReductionsInRounds", reductions_in_rounds},
          {"SumInRankOrder", sum_in_rank_order},
          {"HalfPrecisionRoundsOnce", half_precision_rounds_once},
          {"NanSurvives", nan_survives},
          {"Broadcast", broadcast},
          {"AllGather", all_gather},
          {"AllToAll", all_to_all},
          {"CollectiveViews", views_in_collectives},
          {"Barrier", barrier},
          {"CollectivesBesideExchanges", collectives_beside_exchanges}};
}

}  // namespace annulus::comm::suite
