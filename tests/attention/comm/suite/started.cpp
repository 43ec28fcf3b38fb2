#include <gmock/gmock.h>

#include <cmath>
#include <memory>

#include "attention/comm/suite/numbers.hpp"
#include "attention/comm/suite/suite.hpp"

namespace annulus::comm::suite {

namespace {

/// What a rank gets in an all_gather of `count` numbers.
std::vector<std::int64_t> gathered(const Communicator& comm, std::size_t count, int tag) {
  std::vector<std::int64_t> all;
  for (int r = 0; r < comm.size(); ++r) {
    const auto part = pattern(count, r, tag);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

/// A gather and a reduction under way, of numbers that `tag` tells from those of others.
class Started {
 public:
  Started(Communicator& comm, std::size_t count, std::size_t tag, int channel)
      : comm_(comm),
        count_(count),
        tag_(tag),
        mine_(pattern(count, comm.rank(), static_cast<int>(tag))),
        all_(count * static_cast<std::size_t>(comm.size())),
        values_(all_.size()),
        sum_(count) {
    for (std::size_t i = 0; i < values_.size(); ++i) values_[i] = contribution<float>(comm.rank(), i + tag_);
    gather_ =
        comm.start_all_gather(host_queue(), mine_.data(), all_.data(), count * sizeof mine_[0], channel);
    reduction_ = comm.start_reduce_scatter(host_queue(), values_.data(), sum_.data(),
                                           {.count = count, .type = DType::f32}, channel);
  }
  void wait() {
    reduction_.wait();
    gather_.wait();
  }
  bool test() { return reduction_.test() && gather_.test(); }
  void check() const {
    std::vector<float> wanted(count_);
    const std::size_t first = static_cast<std::size_t>(comm_.rank()) * count_;
    for (std::size_t i = 0; i < count_; ++i)
      wanted[i] = expected<float>(comm_.size(), first + i + tag_, ReduceOp::sum);
    EXPECT_EQ(all_, gathered(comm_, count_, static_cast<int>(tag_)));
    EXPECT_TRUE(same_bits(sum_.data(), wanted.data(), count_)) << count_;
  }

 private:
  const Communicator& comm_;
  std::size_t count_, tag_;
  std::vector<std::int64_t> mine_, all_;
  std::vector<float> values_, sum_;
  Request gather_, reduction_;
};

/// Several at once on two channels, waited for backwards.
void started_collectives(Communicator& comm) {
  std::vector<std::unique_ptr<Started>> started;
  for (const std::size_t count : {0, 1, 7, 5000, 3, 20011})
    started.push_back(
        std::make_unique<Started>(comm, count, started.size(), static_cast<int>(started.size() % 2)));
  for (auto one = started.rbegin(); one != started.rend(); ++one) {
    (*one)->wait();
    (*one)->check();
  }
}

/// Seen to be done by test(), which enqueues the sums, too.
void started_collectives_are_tested(Communicator& comm) {
  Started started(comm, 3000, 4, 2);
  while (!started.test()) comm.progress();
  started.check();
}

/// This rank's block is where it belongs already; the sum replaces this rank's contribution to it.
void started_in_place(Communicator& comm) {
  const std::size_t count = 1000, all = count * static_cast<std::size_t>(comm.size()),
                    own = static_cast<std::size_t>(comm.rank()) * count;
  const auto mine = pattern(count, comm.rank(), 5);
  std::vector<std::int64_t> whole(all);
  std::copy(mine.begin(), mine.end(), whole.begin() + static_cast<std::ptrdiff_t>(own));
  comm.start_all_gather(host_queue(), whole.data() + own, whole.data(), count * sizeof mine[0], 0).wait();
  EXPECT_EQ(whole, gathered(comm, count, 5));
  using View = Kokkos::View<std::int64_t*, Kokkos::HostSpace>;
  const View values(whole.data(), all), sum(whole.data() + own, count);
  comm.start_reduce_scatter(host_queue(), values, sum, 0).wait();
  std::vector<std::int64_t> wanted = pattern(count, comm.rank(), 5);
  for (std::int64_t& value : wanted) value *= comm.size();
  EXPECT_EQ(std::vector<std::int64_t>(sum.data(), sum.data() + count), wanted);
  // As exchanges: errors name the rank and the channel, and requests that nobody waits for are waited for.
  EXPECT_THAT(error_text([&] { comm.start_reduce_scatter(host_queue(), values, sum, -1); }),
              testing::HasSubstr("reduce_scatter on channel -1"));
  EXPECT_THAT(error_text([&] { comm.start_all_gather(host_queue(), sum, sum, 0); }),
              testing::HasSubstr(comm.size() == 1 ? "no error" : "ranks gather 1000 each"));
  std::vector<std::int64_t> again(all);
  { const auto dropped = comm.start_all_gather(host_queue(), mine.data(), again.data(), count * 8, 1); }
  EXPECT_EQ(again, gathered(comm, count, 5));
}

/// Half of the ranks wait for a collective before they do what the other half wants to see before it waits:
/// whoever waits, for whatever, passes on what others need.
void ranks_wait_in_different_orders(Communicator& comm) {
  const bool collective_first = comm.rank() % 2 == 0;
  const auto beside = [&](std::size_t tag, const auto& work) {
    Started started(comm, 2000, tag, 1);
    if (collective_first) started.wait();
    work();
    if (!collective_first) started.wait();
    started.check();
  };
  beside(1, [&] {
    const auto out = pattern(4000, comm.rank(), 8);
    std::vector<std::int64_t> in(4000);
    exchange_one(comm, send_of(out, next_of(comm)), receive_of(in, previous_of(comm)), 0).wait();
    EXPECT_EQ(in, pattern(4000, previous_of(comm), 8));
  });
  beside(2, [&] { comm.barrier(); });
  beside(3, [&] { EXPECT_EQ(comm.all_reduce_value(1, ReduceOp::sum), comm.size()); });
  beside(4, [&] { check_all_reduce<float>(comm, 50000, ReduceOp::sum); });
  beside(5, [&] {
    auto data = pattern(100, comm.rank(), 6);
    comm.broadcast(host_queue(), data.data(), 100 * sizeof data[0], comm.size() - 1);
    EXPECT_EQ(data, pattern(100, comm.size() - 1, 6));
  });
  beside(6, [&] {
    const auto group = comm.split(comm.rank() / 2, comm.rank());
    check_reduce_scatter<float>(*group, 13, ReduceOp::sum);
  });
  beside(7, [&] {
    std::vector<std::int64_t> out(static_cast<std::size_t>(comm.size()), comm.rank()), in(out.size());
    comm.all_to_all(host_queue(), out.data(), in.data(), sizeof out[0]);
    EXPECT_EQ(in.back(), comm.size() - 1);
  });
}

/// Sums in an order of the transport's own: to rounding those in rank order, and the same bits on every rank.
void native_sums(Communicator& comm) {
  const std::size_t ranks = static_cast<std::size_t>(comm.size());
  for (const std::size_t count : {1, 7, 40000, 100003}) {
    std::vector<float> mine(count), all(count * ranks);
    for (std::size_t i = 0; i < count; ++i) mine[i] = contribution<float>(comm.rank(), i);
    const auto close = [&](float got, std::size_t i) {
      double sum = 0, size = 0;
      for (int r = 0; r < comm.size(); ++r) {
        sum += double(contribution<float>(r, i));
        size += std::abs(double(contribution<float>(r, i)));
      }
      return std::abs(got - sum) <= 2e-6 * size;
    };
    comm.all_reduce(host_queue(), mine.data(), {.count = count, .sums = Sums::native});
    comm.all_gather(host_queue(), mine.data(), all.data(), count * sizeof mine[0]);
    std::size_t far = 0;
    for (std::size_t i = 0; i < count; ++i) far += close(mine[i], i) ? 0 : 1;
    EXPECT_EQ(far, 0u) << "of " << count;
    for (std::size_t r = 0; r < ranks; ++r)
      EXPECT_TRUE(same_bits(all.data() + r * count, mine.data(), count));

    // Into this rank's own block.
    std::vector<float> values(count * ranks);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = contribution<float>(comm.rank(), i);
    const std::size_t own = static_cast<std::size_t>(comm.rank()) * count;
    comm.start_reduce_scatter(host_queue(), values.data(), values.data() + own,
                              {.count = count, .sums = Sums::native}, 0)
        .wait();
    for (std::size_t i = 0; i < count; ++i) far += close(values[own + i], own + i) ? 0 : 1;
    EXPECT_EQ(far, 0u) << "of " << count;
  }
}

}  // namespace

std::vector<Case> started_cases() {
  return {{"StartedCollectives", started_collectives},
          {"StartedCollectivesAreTested", started_collectives_are_tested},
          {"StartedInPlace", started_in_place},
          {"RanksWaitInDifferentOrders", ranks_wait_in_different_orders},
          {"NativeSums", native_sums}};
}

}  // namespace annulus::comm::suite
