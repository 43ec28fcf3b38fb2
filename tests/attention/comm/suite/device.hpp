#pragma once

#include <algorithm>
#include <vector>

#include <annulus/base/kokkos/tensor.hpp>

#include "attention/comm/suite/numbers.hpp"
#include "attention/comm/suite/suite.hpp"
#include "support/counting.hpp"

/// What every communicator must do with memory of the execution space under test, in the order of its
/// instance: nothing here fences between a kernel and the transfer of what it wrote, or between a transfer
/// and the kernel that reads it.
namespace annulus::comm::suite {

using test::TestExec, test::add, test::fill, test::on_the_host;
using Numbers = Array1<std::int64_t, TestExec>;

inline Numbers numbers(std::int64_t count) {
  return Numbers("annulus::test::numbers", static_cast<std::size_t>(count));
}

inline std::vector<std::int64_t> counting(std::int64_t count, std::int64_t first, std::int64_t step = 1) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) all[static_cast<std::size_t>(i)] = first + step * i;
  return all;
}

/// Rings on three channels, one round's exchange under way while the round before is added up.
inline void rings_between_kernels(Communicator& comm) {
  constexpr std::int64_t count = 100000, rounds = 30;
  const TestExec exec = test::rank_instance();
  const Numbers sum = numbers(count), out[2] = {numbers(count), numbers(count)},
                in[2] = {numbers(count), numbers(count)};
  Kokkos::deep_copy(exec, sum, 0);
  Request requests[2];
  for (std::int64_t round = 0; round <= rounds; ++round) {
    if (round < rounds) {
      fill(exec, out[round % 2], 1000 * round + comm.rank());
      const Send send = send_view(out[round % 2], next_of(comm));
      const Receive receive = receive_view(in[round % 2], previous_of(comm));
      requests[round % 2] = comm.exchange(exec, {&send, 1}, {&receive, 1}, static_cast<int>(round % 3));
    }
    if (round > 0) {
      requests[(round - 1) % 2].wait();
      add(exec, sum, in[(round - 1) % 2]);
    }
  }
  EXPECT_EQ(on_the_host(exec, sum),
            counting(count, rounds * previous_of(comm) + 1000 * rounds * (rounds - 1) / 2, rounds));
}

/// Two messages a rank at once, longer than what a transport holds of them on their way.
inline void long_messages(Communicator& comm) {
  constexpr std::int64_t count = test::on_host ? 10000 : 12'000'001, shorter = count / 2;
  const TestExec exec = test::rank_instance();
  const Numbers out[2] = {numbers(count), numbers(shorter)}, in[2] = {numbers(count), numbers(shorter)};
  for (std::int64_t round = 0; round < 3; ++round) {
    fill(exec, out[0], count * comm.rank() + round);
    fill(exec, out[1], -count * comm.rank() - round);
    const Send sends[2] = {send_view(out[0], next_of(comm)), send_view(out[1], next_of(comm))};
    const Receive receives[2] = {receive_view(in[0], previous_of(comm)),
                                 receive_view(in[1], previous_of(comm))};
    comm.exchange(exec, sends, receives, 0).wait();
    EXPECT_TRUE(on_the_host(exec, in[0]) == counting(count, count * previous_of(comm) + round));
    EXPECT_TRUE(on_the_host(exec, in[1]) == counting(shorter, -count * previous_of(comm) - round));
  }
}

/// Messages to all ranks at once, itself included, some of them empty; seen to be done by test().
inline void groups_with_itself(Communicator& comm) {
  const TestExec exec = test::rank_instance();
  std::vector<Numbers> out, in;
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int peer = 0; peer < comm.size(); ++peer) {
    out.push_back(numbers((comm.rank() + peer) % 3 * 1000));
    in.push_back(numbers((comm.rank() + peer) % 3 * 1000));
    fill(exec, out.back(), 10000 * comm.rank() + peer);
    sends.push_back(send_view(out.back(), peer));
    receives.push_back(receive_view(in.back(), peer));
  }
  Request request = comm.exchange(exec, sends, receives, 1);
  while (!request.test()) comm.progress();
  for (int peer = 0; peer < comm.size(); ++peer) {
    EXPECT_EQ(on_the_host(exec, in[static_cast<std::size_t>(peer)]),
              counting((comm.rank() + peer) % 3 * 1000, 10000 * peer + comm.rank()));
  }
}

inline void collectives_between_kernels(Communicator& comm) {
  constexpr std::int64_t count = 5000;
  const std::int64_t ranks = comm.size(), rank = comm.rank();
  const TestExec exec = test::rank_instance();
  const Numbers one = numbers(count), all = numbers(count * ranks), others = numbers(count * ranks);
  constexpr std::size_t bytes = count * sizeof(std::int64_t);
  for (int root = 0; root < comm.size(); ++root) {
    fill(exec, one, 100 * rank);
    comm.broadcast(exec, one.data(), bytes, root);
    EXPECT_EQ(on_the_host(exec, one), counting(count, 100 * root));
  }
  fill(exec, one, count * rank);
  comm.all_gather(exec, one.data(), all.data(), bytes);
  EXPECT_EQ(on_the_host(exec, all), counting(count * ranks, 0));
  fill(exec, all, 1000000 * rank);
  comm.all_to_all(exec, all.data(), others.data(), bytes);
  const std::vector<std::int64_t> got = on_the_host(exec, others);
  for (std::int64_t from = 0; from < ranks; ++from)
    EXPECT_EQ(std::vector(got.begin() + from * count, got.begin() + (from + 1) * count),
              counting(count, 1000000 * from + rank * count));
  fill(exec, one, rank);
  comm.all_reduce(exec, one);
  EXPECT_EQ(on_the_host(exec, one), counting(count, ranks * (ranks - 1) / 2, ranks));
  fill(exec, all, 0);
  comm.start_reduce_scatter(exec, all, one, 0).wait();
  EXPECT_EQ(on_the_host(exec, one), counting(count, ranks * count * rank, ranks));
}

/// Gathers and sums under way on one channel while kernels work on other memory; nobody fences.
inline void started_between_kernels(Communicator& comm) {
  constexpr std::int64_t count = 50000, rounds = 10;
  const std::int64_t ranks = comm.size(), rank = comm.rank();
  const TestExec exec = test::rank_instance();
  const Numbers one = numbers(count), all = numbers(count * ranks), values = numbers(count * ranks),
                sum = numbers(count), total = numbers(count), gathered = numbers(count * ranks);
  Kokkos::deep_copy(exec, total, 0);
  Kokkos::deep_copy(exec, gathered, 0);
  for (std::int64_t round = 0; round < rounds; ++round) {
    fill(exec, one, 1000 * round + count * rank);
    fill(exec, values, round);
    Request gather = comm.start_all_gather(exec, one, all, 0);
    Request reduction = comm.start_reduce_scatter(exec, values, sum, 0);
    comm.progress();
    add(exec, gathered, values);  // what is sent may be read
    reduction.wait();
    add(exec, total, sum);
    gather.wait();
    add(exec, gathered, all);
  }
  // Each round adds i + round of every rank; and to the gathered numbers 1000 · round + i beside the values.
  EXPECT_EQ(on_the_host(exec, total),
            counting(count, ranks * (rounds * count * rank + rounds * (rounds - 1) / 2), ranks * rounds));
  EXPECT_EQ(on_the_host(exec, gathered),
            counting(count * ranks, 1001 * rounds * (rounds - 1) / 2, 2 * rounds));
}

template <class T>
void device_reductions_of(Communicator& comm, std::size_t count, ReduceOp op) {
  using Values = Array1<T, TestExec>;
  const TestExec exec = test::rank_instance();
  const auto ranks = static_cast<std::size_t>(comm.size());
  const Values data("annulus::test::data", count), all("annulus::test::all", count * ranks),
      block("annulus::test::block", count);
  const auto load = [&](const Values& values) {
    const auto host = Kokkos::create_mirror_view(Kokkos::HostSpace(), values);
    for (std::size_t i = 0; i < host.size(); ++i) host(i) = contribution<T>(comm.rank(), i);
    Kokkos::deep_copy(exec, values, host);
    exec.fence("annulus::test: the values are on the device");
  };
  const auto check = [&](const Values& values, std::size_t first, const char* what) {
    exec.fence("annulus::test: the host looks");
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), values);
    std::vector<T> wanted(count);
    for (std::size_t i = 0; i < count; ++i) wanted[i] = expected<T>(comm.size(), first + i, op);
    EXPECT_TRUE(same_bits(host.data(), wanted.data(), count))
        << what << " of " << count << " " << name_of(dtype_of<T>);
  };
  load(data);
  comm.all_reduce(exec, data, op);
  check(data, 0, "all_reduce");
  load(all);
  comm.start_reduce_scatter(exec, all.data(), block.data(), {.count = count, .type = dtype_of<T>, .op = op},
                            0)
      .wait();
  check(block, static_cast<std::size_t>(comm.rank()) * count, "reduce_scatter");
}

/// Checks that reductions combine in rank order, bit for bit; the largest takes several rounds of the
/// workspace.
inline void reductions_in_rank_order(Communicator& comm) {
  constexpr std::size_t several_rounds = test::on_host ? 1'200'001 : 17'000'001;
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{300007}}) {
    device_reductions_of<float>(comm, count, ReduceOp::sum);
    device_reductions_of<bfloat16>(comm, count, ReduceOp::sum);
  }
  device_reductions_of<float>(comm, several_rounds, ReduceOp::sum);
  device_reductions_of<float16>(comm, 70001, ReduceOp::sum);
  device_reductions_of<double>(comm, 70001, ReduceOp::max);
  device_reductions_of<std::int32_t>(comm, 70001, ReduceOp::sum);
  device_reductions_of<std::int64_t>(comm, 70001, ReduceOp::min);
}

/// The halves of a communicator, and memory of the host beside that of the device.
inline void halves(Communicator& comm) {
  const TestExec exec = test::rank_instance();
  const auto half = comm.split(comm.rank() * 2 / std::max(2, comm.size()), comm.rank());
  rings_between_kernels(*half);
  EXPECT_EQ(half->all_reduce_value(std::int64_t{1}, ReduceOp::sum), half->size());
}

inline std::vector<Case> device_cases() {
  return {{"RingsBetweenKernels", rings_between_kernels},
          {"LongMessages", long_messages},
          {"GroupsWithItself", groups_with_itself},
          {"CollectivesBetweenKernels", collectives_between_kernels},
          {"StartedBetweenKernels", started_between_kernels},
          {"ReductionsInRankOrder", reductions_in_rank_order},
          {"Halves", halves}};
}

}  // namespace annulus::comm::suite
