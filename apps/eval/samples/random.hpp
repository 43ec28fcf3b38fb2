#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "base/splitmix.hpp"

namespace annulus::eval {

/// Numbers that follow from seeds, the same on every machine.
class Random {
 public:
  /// Seeds of which one differs give other numbers.
  Random(std::initializer_list<std::uint64_t> seeds) {
    for (const std::uint64_t seed : seeds) state_ = splitmix64(state_ ^ seed);
  }

  std::uint64_t next() { return splitmix64(state_++); }

  /// A number from 0 on and below `end`, which is positive.
  std::int64_t below(std::int64_t end) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(end));
  }

  /// A number in [0, 1).
  double share() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  /// `count` different numbers below `end`, in any order.
  std::vector<std::int64_t> distinct(std::int64_t end, std::int64_t count) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(end));
    for (std::int64_t i = 0; i < end; ++i) all[static_cast<std::size_t>(i)] = i;
    for (std::int64_t i = 0; i < count; ++i)
      std::swap(all[static_cast<std::size_t>(i)], all[static_cast<std::size_t>(i + below(end - i))]);
    all.resize(static_cast<std::size_t>(count));
    return all;
  }

 private:
  std::uint64_t state_ = 0;
};

}  // namespace annulus::eval
