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

/// Element i of the reduction over `ranks` ranks, formed literally in rank order.
template <class T>
T expected(int ranks, std::size_t i, ReduceOp op) {
  using A = std::conditional_t<sizeof(T) == 2, float, T>;
  A result = static_cast<A>(contribution<T>(0, i));
  for (int rank = 1; rank < ranks; ++rank) {
    const A value = static_cast<A>(contribution<T>(rank, i));
    switch (op) {
      case ReduceOp::sum:
        if constexpr (std::is_integral_v<A>)
          result = static_cast<A>(static_cast<std::make_unsigned_t<A>>(result) +
                                  static_cast<std::make_unsigned_t<A>>(value));
        else
          result = result + value;
        break;
      case ReduceOp::max:
        result = std::max(result, value);
        break;
      case ReduceOp::min:
        result = std::min(result, value);
        break;
    }
  }
  return static_cast<T>(result);
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
