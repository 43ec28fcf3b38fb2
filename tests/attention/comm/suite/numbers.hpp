#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>

#include "base/splitmix.hpp"

/// What reductions are tried with.
namespace annulus::comm::suite {

/// A number whose sum over ranks depends on the order in which it is formed.
template <class T>
T contribution(int rank, std::size_t i) {
  const std::uint64_t bits = splitmix64(splitmix64(static_cast<std::uint64_t>(rank)) ^ i);
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(bits);
  } else {
    const double unit = static_cast<double>(bits >> 11) * 0x1p-53 - 0.5;
    const double power = static_cast<double>(1u << (bits & 7u)) * 0x1p-3;
    return static_cast<T>(static_cast<float>(unit * power));
  }
}

/// Two numbers combined.
template <class A>
A combined(A a, A b, ReduceOp op) {
  if (op == ReduceOp::max) return std::max(a, b);
  if (op == ReduceOp::min) return std::min(a, b);
  if constexpr (std::is_integral_v<A>)
    return static_cast<A>(static_cast<std::make_unsigned_t<A>>(a) + static_cast<std::make_unsigned_t<A>>(b));
  else
    return a + b;
}

/// Element i of ranks [first, end), neighbours first.
template <class T, class A>
A expected_of(int first, int end, std::size_t i, ReduceOp op) {
  if (end - first == 1) return static_cast<A>(contribution<T>(first, i));
  int half = 1;  // the largest power of two below the number of ranks
  while (2 * half < end - first) half *= 2;
  return combined(expected_of<T, A>(first, first + half, i, op), expected_of<T, A>(first + half, end, i, op),
                  op);
}

/// Element i of the reduction over `ranks` ranks.
template <class T>
T expected(int ranks, std::size_t i, ReduceOp op) {
  using A = std::conditional_t<sizeof(T) == 2, float, T>;
  return static_cast<T>(expected_of<T, A>(0, ranks, i, op));
}

template <class T>
::testing::AssertionResult same_bits(const T* got, const T* wanted, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    if (std::memcmp(got + i, wanted + i, sizeof(T)) != 0)
      return ::testing::AssertionFailure()
             << "element " << i << ": " << got[i] << " instead of " << wanted[i];
  return ::testing::AssertionSuccess();
}

template <class T>
void check_all_reduce(Communicator& comm, std::size_t count, ReduceOp op) {
  std::vector<T> data(count), wanted(count);
  for (std::size_t i = 0; i < count; ++i) {
    data[i] = contribution<T>(comm.rank(), i);
    wanted[i] = expected<T>(comm.size(), i, op);
  }
  comm.all_reduce(Queue(Kokkos::DefaultHostExecutionSpace()), data.data(), count, dtype_of<T>, op);
  EXPECT_TRUE(same_bits(data.data(), wanted.data(), count)) << count << " of " << name_of(dtype_of<T>);
}

template <class T>
void check_reduce_scatter(Communicator& comm, std::size_t count, ReduceOp op) {
  const std::size_t ranks = static_cast<std::size_t>(comm.size()),
                    first = static_cast<std::size_t>(comm.rank()) * count;
  std::vector<T> data(count * ranks), got(count), wanted(count);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = contribution<T>(comm.rank(), i);
  for (std::size_t i = 0; i < count; ++i) wanted[i] = expected<T>(comm.size(), first + i, op);
  comm.start_reduce_scatter(Queue(Kokkos::DefaultHostExecutionSpace()), data.data(), got.data(),
                            {.count = count, .type = dtype_of<T>, .op = op}, 0)
      .wait();
  EXPECT_TRUE(same_bits(got.data(), wanted.data(), count)) << count << " of " << name_of(dtype_of<T>);
}

}  // namespace annulus::comm::suite
