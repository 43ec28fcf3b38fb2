#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>

#include <annulus/core/tensor.hpp>
#include <annulus/sparsity/options.hpp>

#include "sparsity/bits.hpp"

namespace annulus::sparsity {

/// How many items are chosen: the fewest whose masses sum to a share of all mass, or a number of them.
struct Budget {
  double recall = 0;  ///< 0: `count`
  std::int64_t count = 0;
  std::int64_t forced = 0;  ///< the first items, which are chosen whatever their mass and count in the budget
  std::int64_t forced_wide = 0;  ///< likewise, the first of the wide items
};

/// The masses of all lists: `items` of them, list by list `stride` apart, each at most 2⁶². The items from
/// `first_wide` on are slashes among keys: they cost as many pairs as block_tokens keys.
struct Masses {
  const std::int64_t* first;
  std::int64_t stride, items;
  std::int64_t first_wide = items;

  KOKKOS_FUNCTION bool is_wide(std::int64_t item) const { return item >= first_wide; }
};

/// By which items are ordered: the mass that an item holds for the pairs that it costs. 0 of no mass alone.
KOKKOS_INLINE_FUNCTION std::int64_t worth_of_mass(std::int64_t mass, bool wide) {
  return wide ? (mass + block_tokens - 1) / block_tokens : mass;
}

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

/// Chooses the items of each list that are worth most (worth_of_mass); of equal ones those with the lower
/// number. Sets bit i of list l's words, (lists, words), where item i is chosen, and clears all others. Works
/// with sums of integers alone, so that the result does not depend on who adds what.
template <class Exec>
void choose_largest(const Exec& exec, const Masses& masses, const Budget& budget,
                    const Array2<std::uint32_t, Exec>& chosen) {
  using namespace choose_detail;  // NOLINT(google-build-using-namespace): helpers of this function
  using Policy = Kokkos::TeamPolicy<Exec>;
  Kokkos::parallel_for(
      "annulus::sparsity::choose_largest", Policy(exec, static_cast<int>(chosen.extent(0)), Kokkos::AUTO),
      KOKKOS_LAMBDA(const typename Policy::member_type& team) {
        const std::int64_t* const mass = masses.first + team.league_rank() * masses.stride;
        const std::int64_t items = masses.items;
        const bool by_mass = budget.recall > 0;
        const auto rank = [&](std::int64_t i) { return worth_of_mass(mass[i], masses.is_wide(i)); };
        const auto is_forced = [&](std::int64_t i) {
          return masses.is_wide(i) ? i - masses.first_wide < budget.forced_wide : i < budget.forced;
        };
        const auto part = [&](std::int64_t i) { return by_mass ? mass[i] : std::int64_t{1}; };
        const auto sum_of = [&](const auto& holds) {
          return sum(team, items, [&](std::int64_t i) { return holds(i) ? part(i) : std::int64_t{0}; });
        };
        std::int64_t target = budget.count < items ? budget.count : items;
        if (by_mass) {
          const std::int64_t total = sum(team, items, part);
          const double share = Kokkos::ceil(budget.recall * static_cast<double>(total));
          target = share < static_cast<double>(total) ? static_cast<std::int64_t>(share) : total;
        }
        const std::int64_t rest = target - sum_of(is_forced);  // for the items that are not forced
        const auto rest_of = [&](const auto& holds) {
          return sum_of([&](std::int64_t i) { return !is_forced(i) && holds(i); });
        };
        // All items above the threshold are chosen, and the first of those that equal it, up to `end`.
        std::int64_t threshold = std::int64_t{1} << 62, end = 0;
        if (rest > 0) {
          threshold = last_that_holds(0, threshold, [&](std::int64_t t) {
            return rest_of([&](std::int64_t i) { return rank(i) >= t; }) >= rest;
          });
          const std::int64_t equal = rest - rest_of([&](std::int64_t i) { return rank(i) > threshold; });
          end = 1 + last_that_holds(-1, items - 1, [&](std::int64_t last) {
                  return rest_of([&](std::int64_t i) { return rank(i) == threshold && i < last; }) < equal;
                });
        }
        Kokkos::parallel_for(
            Kokkos::TeamVectorRange(team, static_cast<std::int64_t>(chosen.extent(1))),
            [&](const std::int64_t w) {
              std::uint32_t word = 0;
              for (std::int64_t i = w * word_bits; i < (w + 1) * word_bits && i < items; ++i) {
                const bool take = is_forced(i) || rank(i) > threshold || (rank(i) == threshold && i < end);
                if (take) word |= 1u << (i - w * word_bits);
              }
              chosen(team.league_rank(), w) = word;
            });
      });
}

}  // namespace annulus::sparsity
