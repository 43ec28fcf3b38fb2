#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>

#include <annulus/core/tensor.hpp>

#include "sparsity/bits.hpp"

namespace annulus::sparsity {

/// How many items are chosen: the fewest whose masses sum to a share of all mass, or a number of them.
struct Budget {
  double recall = 0;  ///< 0: `count`
  std::int64_t count = 0;
  std::int64_t forced = 0;  ///< the first items, which are chosen whatever their mass and count in the budget
};

/// The masses of all lists: `items` of them, list by list `stride` apart, each at most 2⁶².
struct Masses {
  const std::int64_t* first;
  std::int64_t stride, items;
};

namespace choose_detail {  // named: device compilers want lambdas and their captures to have linkage

/// Sum of value(i) over the items of a list, by the whole team.
template <class Member, class Value>
KOKKOS_FUNCTION std::int64_t sum(const Member& team, std::int64_t items, const Value& value) {
  std::int64_t total = 0;
  Kokkos::parallel_reduce(
      Kokkos::TeamVectorRange(team, items),
      [&](const std::int64_t i, std::int64_t& part) { part += value(i); }, total);
  return total;
}

/// The largest x in [low, high] for which holds(x), which holds(low) and never again once it does not.
template <class Holds>
KOKKOS_FUNCTION std::int64_t last_that_holds(std::int64_t low, std::int64_t high, const Holds& holds) {
  while (low < high) {
    const std::int64_t middle = high - (high - low) / 2;
    if (holds(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace choose_detail

/// Chooses the largest items of each list; of equal ones those with the lower number. Sets bit i of list l's
/// words, (lists, words), where item i is chosen, and clears all others. Works with sums of integers alone,
/// so that the result does not depend on who adds what.
template <class Exec>
void choose_largest(const Exec& exec, const Masses& masses, const Budget& budget,
                    const Array2<std::uint32_t, Exec>& chosen) {
  using namespace choose_detail;  // NOLINT(google-build-using-namespace): helpers of this function
  using Policy = Kokkos::TeamPolicy<Exec>;
  const std::int64_t items = masses.items, forced = budget.forced < items ? budget.forced : items;
  Kokkos::parallel_for(
      "annulus::sparsity::choose_largest", Policy(exec, static_cast<int>(chosen.extent(0)), Kokkos::AUTO),
      KOKKOS_LAMBDA(const typename Policy::member_type& team) {
        const std::int64_t* const mass = masses.first + team.league_rank() * masses.stride;
        const bool by_mass = budget.recall > 0;
        const auto worth = [&](std::int64_t i) { return by_mass ? mass[i] : std::int64_t{1}; };
        std::int64_t target = budget.count < items ? budget.count : items;
        if (by_mass) {
          const std::int64_t total = sum(team, items, worth);
          const double share = Kokkos::ceil(budget.recall * static_cast<double>(total));
          target = share < static_cast<double>(total) ? static_cast<std::int64_t>(share) : total;
        }
        const std::int64_t rest = target - sum(team, forced, worth);  // for the items that are not forced
        const auto worth_of = [&](const auto& holds) {
          return sum(team, items,
                     [&](std::int64_t i) { return i >= forced && holds(i) ? worth(i) : std::int64_t{0}; });
        };
        // All items above the threshold are chosen, and the first of those that equal it, up to `end`.
        std::int64_t threshold = std::int64_t{1} << 62, end = 0;
        if (rest > 0) {
          threshold = last_that_holds(0, threshold, [&](std::int64_t t) {
            return worth_of([&](std::int64_t i) { return mass[i] >= t; }) >= rest;
          });
          const std::int64_t equal = rest - worth_of([&](std::int64_t i) { return mass[i] > threshold; });
          end = 1 + last_that_holds(-1, items - 1, [&](std::int64_t last) {
                  return worth_of([&](std::int64_t i) { return mass[i] == threshold && i < last; }) < equal;
                });
        }
        Kokkos::parallel_for(
            Kokkos::TeamVectorRange(team, static_cast<std::int64_t>(chosen.extent(1))),
            [&](const std::int64_t w) {
              std::uint32_t word = 0;
              for (std::int64_t i = w * word_bits; i < (w + 1) * word_bits && i < items; ++i) {
                const bool take = i < forced || mass[i] > threshold || (mass[i] == threshold && i < end);
                if (take) word |= 1u << (i - w * word_bits);
              }
              chosen(team.league_rank(), w) = word;
            });
      });
}

}  // namespace annulus::sparsity
