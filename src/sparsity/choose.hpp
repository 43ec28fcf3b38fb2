#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <bit>
#include <cstdint>

#include <annulus/base/division.hpp>
#include <annulus/core/pack.hpp>
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

/// total = the sum of what add(item, its mass, part) adds to `part` for all items of a list, by the whole
/// team. A thread reads several masses before it uses the first: lists are few and long, so that a device has
/// too few threads to wait for memory one by one.
template <class Member, class Total, class Add>
KOKKOS_FUNCTION void sum_over_items(const Member& team, const std::int64_t* mass, std::int64_t items,
                                    const Add& add, Total& total) {
  constexpr int at_once = 8;
  const std::int64_t lanes = team.team_size();
  Kokkos::parallel_reduce(
      Kokkos::TeamThreadRange(team, ceil_divide(items, at_once * lanes) * lanes),
      [&](const std::int64_t i, Total& part) {
        const std::int64_t first = i / lanes * lanes * at_once + i % lanes;
        std::int64_t masses[at_once];
        for (int n = 0; n < at_once; ++n) {
          const std::int64_t item = first + n * lanes;
          masses[n] = item < items ? mass[item] : 0;
        }
        for (int n = 0; n < at_once; ++n) {
          const std::int64_t item = first + n * lanes;
          if (item < items) add(item, masses[n], part);
        }
      },
      Kokkos::Sum<Total>(total));
}

/// How much of the items has each digit.
inline constexpr int digit_bits = 4, digits = 1 << digit_bits;
struct DigitSums {
  std::int64_t of[digits] = {};
  KOKKOS_FUNCTION DigitSums& operator+=(const DigitSums& other) {
    for (int digit = 0; digit < digits; ++digit) of[digit] += other.of[digit];
    return *this;
  }
};

}  // namespace choose_detail
}  // namespace annulus::sparsity

template <>
struct Kokkos::reduction_identity<annulus::sparsity::choose_detail::DigitSums> {
  KOKKOS_FUNCTION static annulus::sparsity::choose_detail::DigitSums sum() { return {}; }
};

namespace annulus::sparsity {
namespace choose_detail {

/// Where the sum of the items' parts reaches `wanted`, counted from the largest number down or from 0 up.
struct Reached {
  std::int64_t number = 0;  ///< of the items at which it does
  std::int64_t rest = 0;    ///< what those before lack
};

/// Radix selection, a digit at a time from the highest on. `number(item, mass)` < 2^bits; part(item, mass) of
/// items that do not count is 0. All items together must reach `wanted` > 0. By the whole team.
template <bool descending, class Member, class Number, class Part>
KOKKOS_FUNCTION Reached reach(const Member& team, const std::int64_t* masses, std::int64_t items, int bits,
                              std::int64_t wanted, const Number& number, const Part& part) {
  Reached at{0, wanted};
  for (int shift = (bits - 1) / digit_bits * digit_bits; shift >= 0; shift -= digit_bits) {
    DigitSums sums;
    sum_over_items(
        team, masses, items,
        [&](std::int64_t item, std::int64_t mass, DigitSums& mine) {
          const std::int64_t from_here = number(item, mass) >> shift;
          if (from_here >> digit_bits != at.number) return;
          const std::int64_t value = part(item, mass);
          // Without an index that the compiler does not know the sums stay in registers.
          for (int digit = 0; digit < digits; ++digit)
            mine.of[digit] += (from_here & (digits - 1)) == digit ? value : 0;
        },
        sums);
    int digit = descending ? digits - 1 : 0;
    for (int seen = 1; seen < digits && sums.of[digit] < at.rest; ++seen) {
      at.rest -= sums.of[digit];
      digit += descending ? -1 : 1;
    }
    at.number = at.number << digit_bits | digit;
  }
  return at;
}

/// As many threads for each list as there can be: there are few lists, and the items are many.
template <class Exec, class Kernel>
Kokkos::TeamPolicy<Exec> policy_of_lists(const Exec& exec, int lists, const Kernel& kernel) {
  using Policy = Kokkos::TeamPolicy<Exec>;
  if constexpr (annulus::detail::host_memory<Exec>) {
    return Policy(exec, lists, Kokkos::AUTO);
  } else {
    return Policy(exec, lists, Policy(exec, lists, 1).team_size_max(kernel, Kokkos::ParallelForTag()));
  }
}

}  // namespace choose_detail

/// Chooses the items of each list that are worth most (worth_of_mass); of equal ones those with the lower
/// number. Sets bit i of list l's words, (lists, words), where item i is chosen, and clears all others. Works
/// with sums of integers alone, so that the result does not depend on who adds what.
template <class Exec>
void choose_largest(const Exec& exec, const Masses& masses, const Budget& budget,
                    const Array2<std::uint32_t, Exec>& chosen) {
  using namespace choose_detail;  // NOLINT(google-build-using-namespace): helpers of this function
  const int number_bits =
      std::max(1, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(masses.items))));
  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  const auto kernel = KOKKOS_LAMBDA(const Member& team) {
    const std::int64_t* const mass = masses.first + team.league_rank() * masses.stride;
    const std::int64_t items = masses.items;
    const bool by_mass = budget.recall > 0;
    const auto rank = [&](std::int64_t item, std::int64_t its_mass) {
      return worth_of_mass(its_mass, masses.is_wide(item));
    };
    const auto is_forced = [&](std::int64_t item) {
      return masses.is_wide(item) ? item - masses.first_wide < budget.forced_wide : item < budget.forced;
    };
    const auto part = [&](std::int64_t its_mass) { return by_mass ? its_mass : std::int64_t{1}; };
    std::int64_t target = budget.count < items ? budget.count : items;
    if (by_mass) {
      std::int64_t total = 0;
      sum_over_items(
          team, mass, items, [](std::int64_t, std::int64_t its_mass, std::int64_t& sum) { sum += its_mass; },
          total);
      const double share = Kokkos::ceil(budget.recall * static_cast<double>(total));
      target = share < static_cast<double>(total) ? static_cast<std::int64_t>(share) : total;
    }
    std::int64_t of_forced = 0;
    sum_over_items(
        team, mass, items,
        [&](std::int64_t item, std::int64_t its_mass, std::int64_t& sum) {
          if (is_forced(item)) sum += part(its_mass);
        },
        of_forced);
    // All items above the threshold are chosen, and the first of those that equal it, up to `last`.
    std::int64_t threshold = std::int64_t{1} << 62, last = -1;
    if (target > of_forced) {
      const Reached worth = reach<true>(team, mass, items, 63, target - of_forced, rank,
                                        [&](std::int64_t item, std::int64_t its_mass) {
                                          return is_forced(item) ? std::int64_t{0} : part(its_mass);
                                        });
      threshold = worth.number;
      const Reached place = reach<false>(
          team, mass, items, number_bits, worth.rest, [](std::int64_t item, std::int64_t) { return item; },
          [&](std::int64_t item, std::int64_t its_mass) {
            return is_forced(item) || rank(item, its_mass) != threshold ? std::int64_t{0} : part(its_mass);
          });
      last = place.number;
    }
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, static_cast<std::int64_t>(chosen.extent(1))),
                         [&](const std::int64_t w) {
                           std::uint32_t word = 0;
                           for (std::int64_t i = w * word_bits; i < (w + 1) * word_bits && i < items; ++i) {
                             const std::int64_t worth = rank(i, mass[i]);
                             const bool take =
                                 is_forced(i) || worth > threshold || (worth == threshold && i <= last);
                             if (take) word |= 1u << (i - w * word_bits);
                           }
                           chosen(team.league_rank(), w) = word;
                         });
  };
  Kokkos::parallel_for("annulus::sparsity::choose_largest",
                       policy_of_lists(exec, static_cast<int>(chosen.extent(0)), kernel), kernel);
}

}  // namespace annulus::sparsity
