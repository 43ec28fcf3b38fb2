#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <bit>
#include <cstdint>

#include <annulus/base/division.hpp>
#include <annulus/core/memory.hpp>
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

/// Where the sum of the items' parts reaches what is wanted, counted from the largest number down or from 0
/// up: known to so many digits of the number.
struct Reached {
  std::int64_t number = 0;
  std::int64_t rest = 0;  ///< what the items before it lack

  /// With one digit more, of which `sums` are the items' parts.
  template <bool descending>
  KOKKOS_FUNCTION Reached behind(const std::int64_t* sums) const {
    Reached next = *this;
    int digit = descending ? digits - 1 : 0;
    for (int seen = 1; seen < digits && sums[digit] < next.rest; ++seen) {
      next.rest -= sums[digit];
      digit += descending ? -1 : 1;
    }
    next.number = number << digit_bits | digit;
    return next;
  }
};

inline constexpr int worth_passes = 16;  // worths have 63 bits

inline int place_passes(std::int64_t items) {
  const auto bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(items)));
  return std::max(1, ceil_divide(bits, digit_bits));
}

/// Radix selection of all lists, a pass over the items for each digit of the worth at which the budget is
/// reached, and then of the last of the items that have it: kernel after kernel, so that the whole device
/// works for the few lists that there are.
template <class Exec>
struct Choice {
  Masses masses;
  Budget budget;
  /// A list before a pass: what is known so far of the worth, or of the place among the items that have it.
  struct State {
    Reached reached;
    std::int64_t threshold;  // the worth, when places are looked for
  };
  Array2<std::int64_t, Exec> totals;   // (lists, 2): parts of all items, and of the forced ones
  Array3<std::int64_t, Exec> sums;     // (passes, lists, digits), 0 before the passes
  Kokkos::View<State**, Exec> states;  // (passes, lists)

  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  static constexpr std::int64_t items_of_team = 4096;

  KOKKOS_FUNCTION bool by_mass() const { return budget.recall > 0; }
  KOKKOS_FUNCTION std::int64_t mass(std::int64_t list, std::int64_t item) const {
    return masses.first[list * masses.stride + item];
  }
  KOKKOS_FUNCTION std::int64_t worth(std::int64_t list, std::int64_t item) const {
    return worth_of_mass(mass(list, item), masses.is_wide(item));
  }
  KOKKOS_FUNCTION bool is_forced(std::int64_t item) const {
    return masses.is_wide(item) ? item - masses.first_wide < budget.forced_wide : item < budget.forced;
  }
  KOKKOS_FUNCTION std::int64_t part(std::int64_t list, std::int64_t item) const {
    return by_mass() ? mass(list, item) : std::int64_t{1};
  }
  /// What the items that are not forced have to bring.
  KOKKOS_FUNCTION std::int64_t wanted(std::int64_t list) const {
    std::int64_t target = budget.count < masses.items ? budget.count : masses.items;
    if (by_mass()) {
      const std::int64_t total = totals(list, 0);
      const double share = Kokkos::ceil(budget.recall * static_cast<double>(total));
      target = share < static_cast<double>(total) ? static_cast<std::int64_t>(share) : total;
    }
    return target - totals(list, 1);
  }

  /// A list before pass `pass`, or behind the last one.
  KOKKOS_FUNCTION State before(int pass, std::int64_t list) const {
    if (pass == 0) return {{0, wanted(list)}, 0};
    const State& last = states(pass - 1, list);
    const std::int64_t* const of_digits = &sums(pass - 1, list, 0);
    if (pass > worth_passes) return {last.reached.template behind<false>(of_digits), last.threshold};
    const Reached reached = last.reached.template behind<true>(of_digits);
    if (pass < worth_passes) return {reached, 0};
    return {{0, reached.rest}, reached.number};
  }

  /// Calls add(item, sum) for the items that a team has from `first` on, and take(sum) for the team's sum.
  template <class Sum, class Add, class Take>
  KOKKOS_FUNCTION void sum_up(const Member& team, std::int64_t first, const Add& add,
                              const Take& take) const {
    const std::int64_t end = first + items_of_team < masses.items ? first + items_of_team : masses.items;
    Sum sum{};
    Kokkos::parallel_reduce(
        Kokkos::TeamThreadRange(team, first, end),
        [&](const std::int64_t item, Sum& mine) { add(item, mine); }, Kokkos::Sum<Sum>(sum));
    Kokkos::single(Kokkos::PerTeam(team), [&] { take(sum); });
  }

  KOKKOS_FUNCTION void add_totals(const Member& team, std::int64_t list, std::int64_t first) const {
    sum_up<std::int64_t>(
        team, first, [&](std::int64_t item, std::int64_t& sum) { sum += part(list, item); },
        [&](std::int64_t sum) { Kokkos::atomic_add(&totals(list, 0), sum); });
    sum_up<std::int64_t>(
        team, first,
        [&](std::int64_t item, std::int64_t& sum) { sum += is_forced(item) ? part(list, item) : 0; },
        [&](std::int64_t sum) { Kokkos::atomic_add(&totals(list, 1), sum); });
  }

  KOKKOS_FUNCTION void add_digits(const Member& team, std::int64_t list, std::int64_t first, int pass,
                                  int shift) const {
    const State state = before(pass, list);
    const bool of_places = pass >= worth_passes;
    if (first == 0) Kokkos::single(Kokkos::PerTeam(team), [&] { states(pass, list) = state; });
    if (wanted(list) <= 0) return;
    sum_up<DigitSums>(
        team, first,
        [&](std::int64_t item, DigitSums& mine) {
          if (of_places && worth(list, item) != state.threshold) return;
          const std::int64_t from_here = (of_places ? item : worth(list, item)) >> shift;
          if (from_here >> digit_bits != state.reached.number || is_forced(item)) return;
          const std::int64_t value = part(list, item);
          // Without an index that the compiler does not know the sums stay in registers.
          for (int digit = 0; digit < digits; ++digit)
            mine.of[digit] += (from_here & (digits - 1)) == digit ? value : 0;
        },
        [&](const DigitSums& all) {
          for (int digit = 0; digit < digits; ++digit)
            if (all.of[digit] != 0) Kokkos::atomic_add(&sums(pass, list, digit), all.of[digit]);
        });
  }

  /// 32 items as a word of bits: all above the threshold are chosen, and the first of those that equal it.
  KOKKOS_FUNCTION std::uint32_t word(std::int64_t list, std::int64_t w, int passes) const {
    const bool none = wanted(list) <= 0;  // but for the forced ones
    const State end = before(passes, list);
    std::uint32_t bits = 0;
    for (std::int64_t item = w * word_bits; item < (w + 1) * word_bits && item < masses.items; ++item) {
      const std::int64_t its_worth = worth(list, item);
      const bool large =
          its_worth > end.threshold || (its_worth == end.threshold && item <= end.reached.number);
      if (is_forced(item) || (large && !none)) bits |= 1u << (item - w * word_bits);
    }
    return bits;
  }
};

}  // namespace choose_detail

/// Chooses the items of each list that are worth most (worth_of_mass); of equal ones those with the lower
/// number. Sets bit i of list l's words, (lists, words), where item i is chosen, and clears all others. Works
/// with sums of integers alone, so that the result does not depend on who adds what.
template <class Exec>
void choose_largest(const Exec& exec, const Masses& masses, const Budget& budget,
                    const Array2<std::uint32_t, Exec>& chosen) {
  using namespace choose_detail;  // NOLINT(google-build-using-namespace): helpers of this function
  const auto lists = static_cast<std::int64_t>(chosen.extent(0)),
             words = static_cast<std::int64_t>(chosen.extent(1));
  const int places = place_passes(masses.items), passes = worth_passes + places;
  constexpr auto workspace = MemoryCategory::workspace;
  using Choosing = Choice<Exec>;
  const auto totals =
      Owned<Array2<std::int64_t, Exec>>::zeroed(exec, workspace, "annulus::sparsity::totals", lists, 2);
  const auto sums = Owned<Array3<std::int64_t, Exec>>::zeroed(
      exec, workspace, "annulus::sparsity::digit_sums", passes, lists, digits);
  const auto states = Owned<Kokkos::View<typename Choosing::State**, Exec>>::uninitialized(
      exec, workspace, "annulus::sparsity::choice", passes, lists);
  const Choosing choice{masses, budget, *totals, *sums, *states};

  const std::int64_t teams = ceil_divide(masses.items, Choosing::items_of_team);
  using Member = typename Choosing::Member;
  const Kokkos::TeamPolicy<Exec> policy(exec, static_cast<int>(lists * teams), Kokkos::AUTO);
  Kokkos::parallel_for(
      "annulus::sparsity::total_masses", policy, KOKKOS_LAMBDA(const Member& team) {
        choice.add_totals(team, team.league_rank() / teams,
                          team.league_rank() % teams * Choosing::items_of_team);
      });
  for (int pass = 0; pass < passes; ++pass) {
    const int digits_left = (pass < worth_passes ? worth_passes : passes) - 1 - pass;
    Kokkos::parallel_for(
        "annulus::sparsity::digit_sums", policy, KOKKOS_LAMBDA(const Member& team) {
          choice.add_digits(team, team.league_rank() / teams,
                            team.league_rank() % teams * Choosing::items_of_team, pass,
                            digits_left * digit_bits);
        });
  }
  Kokkos::parallel_for(
      "annulus::sparsity::choose_largest", Kokkos::RangePolicy<Exec>(exec, 0, lists * words),
      KOKKOS_LAMBDA(const std::int64_t i) {
        chosen(i / words, i % words) = choice.word(i / words, i % words, passes);
      });
}

}  // namespace annulus::sparsity
