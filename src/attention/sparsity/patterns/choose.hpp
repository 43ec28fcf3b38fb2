#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include <annulus/attention/sparsity/options.hpp>
#include <annulus/base/division.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/sparsity/bits.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "base/kokkos/sum_of.hpp"

namespace annulus::sparsity {

/// How many items are chosen: the fewest whose masses sum to a share of all mass, or a number of them.
struct Budget {
  double recall = 0;  ///< 0: `count`
  std::int64_t count = 0;
  std::int64_t forced = 0;  ///< the first items, which are chosen whatever their mass and count in the budget
  std::int64_t forced_wide = 0;  ///< the first of the wide items, chosen as these are
};

/// The masses of all lists: `items` of them, list by list `stride` apart, each below 2⁶².
/// The items from `first_wide` on are slashes among keys: they cost as many pairs as block_tokens keys.
struct Masses {
  const std::int64_t* first = nullptr;
  std::int64_t stride = 0, items = 0, first_wide = items;

  KOKKOS_FUNCTION bool is_wide(std::int64_t item) const { return item >= first_wide; }
};

/// The order of items: the mass that an item holds for the pairs that it costs. 0 of no mass alone.
KOKKOS_INLINE_FUNCTION std::int64_t worth_of_mass(std::int64_t mass, bool wide) {
  return wide ? (mass + block_tokens - 1) / block_tokens : mass;
}

/// Items of a list that have a budget of their own: keys first … end − 1, and wide items.
struct Segment {
  std::int64_t first, end;
  std::int64_t first_wide = 0, end_wide = 0;

  KOKKOS_FUNCTION std::int64_t items() const { return end - first + end_wide - first_wide; }
};
/// How the items of each list fall into segments, in memory of the execution space. Items of no segment are
/// not chosen. By default all items are one.
struct Segments {
  const Segment* all = nullptr;  ///< increasing
  std::int64_t count = 1;
};

/// What is to be chosen of the items of all lists, and where: bit i of list l's words, (lists, words), is set
/// where item i is chosen, and clear else. Each segment has the budget.
template <class Exec>
struct Wanted {
  Masses masses;
  Budget budget;
  Array2<std::uint32_t, Exec> chosen;
  Segments segments = {};
};

namespace choose_detail {  // named: device compilers want lambdas and their captures to have linkage

inline constexpr int digit_bits = 4, digits = 1 << digit_bits;

/// What the items with each value of a digit bring.
struct DigitSums {
  std::int64_t of[digits] = {};

  KOKKOS_FUNCTION DigitSums& operator+=(const DigitSums& other) {
    for (int digit = 0; digit < digits; ++digit) of[digit] += other.of[digit];
    return *this;
  }
};

/// What a segment's items bring, the forced ones alone, and the bits that the others' worths have.
struct SegmentTotals {
  std::int64_t all = 0, forced = 0, bits = 0;

  KOKKOS_FUNCTION SegmentTotals& operator+=(const SegmentTotals& other) {
    all += other.all;
    forced += other.forced;
    bits |= other.bits;
    return *this;
  }
};

/// Chosen are the items worth more than `worth`, and those worth as much up to `place`.
struct Limit {
  std::int64_t worth, place;

  static constexpr std::int64_t none = INT64_MAX;

  KOKKOS_FUNCTION bool has(std::int64_t its_worth, std::int64_t item) const {
    return its_worth > worth || (its_worth == worth && item <= place);
  }
};

/// The number at which the sum of the items' parts reaches what is wanted, counted from the largest number
/// down or from 0 up: its digits above bit `shift` are known.
struct Search {
  std::int64_t rest;  ///< what the items before it lack
  int shift;
  std::int64_t number = 0;

  /// Of numbers up to `largest`.
  KOKKOS_FUNCTION Search(std::int64_t wanted, std::int64_t largest) : rest(wanted), shift(0) {
    for (; largest != 0; largest >>= digit_bits) shift += digit_bits;
  }
  KOKKOS_FUNCTION bool has(std::int64_t value) const {
    return value >> (shift - digit_bits) >> digit_bits == number;  // a shift by all 64 bits is undefined
  }
  /// Its next digit, of a value that has the known ones.
  KOKKOS_FUNCTION int digit(std::int64_t value) const {
    return static_cast<int>(value >> (shift - digit_bits)) & (digits - 1);
  }
  /// Takes in one digit more. Whether all items that have the digits are wanted.
  template <bool descending>
  KOKKOS_FUNCTION bool add_digit(const DigitSums& sums) {
    int found = -1;
    bool all = false;
    for (int i = 0; i < digits; ++i) {  // without an index that only a device knows, sums stay in registers
      const int candidate = descending ? digits - 1 - i : i;
      if (found >= 0) continue;
      if (i + 1 < digits && sums.of[candidate] < rest) {
        rest -= sums.of[candidate];
        continue;
      }
      found = candidate;
      all = sums.of[candidate] == rest;
    }
    number = number << digit_bits | found;
    shift -= digit_bits;
    return all;
  }
};

/// Radix selection: for each segment of each list one team looks at all its items for each digit of the worth
/// at which the budget is reached, and then of the place of the last of the items that have it.
template <class Exec>
struct RadixSelection {
  Masses masses;
  Budget budget;
  Array2<std::uint32_t, Exec> chosen;
  Segments segments;
  Limit* limits = nullptr;  // (lists, segments)

  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;

  KOKKOS_FUNCTION bool by_mass() const { return budget.recall > 0; }
  KOKKOS_FUNCTION std::int64_t mass(std::int64_t list, std::int64_t item) const {
    return masses.first[list * masses.stride + item];
  }
  /// Segment `which` of any list.
  KOKKOS_FUNCTION Segment segment(std::int64_t which) const {
    if (segments.all != nullptr) return segments.all[which];
    return {0, masses.first_wide, masses.first_wide, masses.items};
  }
  /// The segment that has the item, or −1.
  KOKKOS_FUNCTION std::int64_t segment_of(std::int64_t item) const {
    if (segments.all == nullptr) return 0;
    const bool wide = masses.is_wide(item);
    std::int64_t low = 0, high = segments.count;  // the last one that begins at or before the item
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      const Segment& of = segments.all[middle];
      ((wide ? of.first_wide : of.first) <= item ? low : high) = middle;
    }
    const Segment& found = segments.all[low];
    const bool inside =
        wide ? found.first_wide <= item && item < found.end_wide : found.first <= item && item < found.end;
    return inside ? low : -1;
  }
  KOKKOS_FUNCTION bool is_forced(const Segment& of, std::int64_t item) const {
    return masses.is_wide(item) ? item - of.first_wide < budget.forced_wide : item - of.first < budget.forced;
  }
  /// What an item brings.
  KOKKOS_FUNCTION std::int64_t part(std::int64_t mass) const { return by_mass() ? mass : std::int64_t{1}; }
  /// What the items of a segment that are not forced have to bring.
  KOKKOS_FUNCTION std::int64_t wanted(const Segment& of, const SegmentTotals& totals) const {
    std::int64_t target = Kokkos::min(budget.count, of.items());
    if (by_mass()) {
      const double share = Kokkos::ceil(budget.recall * static_cast<double>(totals.all));
      target = share < static_cast<double>(totals.all) ? static_cast<std::int64_t>(share) : totals.all;
    }
    return target - totals.forced;
  }

  /// Calls action(item, mass) for a segment's items, each by one of the team's threads.
  template <class Action>
  KOKKOS_FUNCTION void for_each_mass(const Member& team, std::int64_t list, const Segment& of,
                                     const Action& action) const {
    constexpr int at_once = 8;  // loads that do not wait for each other
    const std::int64_t threads = team.team_size(), items = of.items(), keys = of.end - of.first;
    const auto item_of = [&](std::int64_t i) { return i < keys ? of.first + i : of.first_wide + (i - keys); };
    for (std::int64_t first = team.team_rank(); first < items; first += at_once * threads) {
      std::int64_t loaded[at_once];
      for (int i = 0; i < at_once; ++i)
        loaded[i] = first + i * threads < items ? mass(list, item_of(first + i * threads)) : 0;
      for (int i = 0; i < at_once; ++i)
        if (first + i * threads < items) action(item_of(first + i * threads), loaded[i]);
    }
  }

  /// What the items of a segment bring by the next digit of `search`: of the worths, or of the places of the
  /// items that have `worth`.
  template <bool of_places>
  KOKKOS_FUNCTION DigitSums digit_sums(const Member& team, std::int64_t list, const Segment& of,
                                       const Search& search, std::int64_t worth = 0) const {
    // The last digit that is looked at needs no sum, and most masses are small: theirs is 0.
    constexpr int last = of_places ? digits - 1 : 0;
    DigitSums sums;  // of this thread, then of the team
    for_each_mass(team, list, of, [&](const std::int64_t item, const std::int64_t mass) {
      const std::int64_t its_worth = worth_of_mass(mass, masses.is_wide(item)),
                         value = of_places ? item : its_worth;
      if ((of_places && its_worth != worth) || !search.has(value) || is_forced(of, item)) return;
      const int its_digit = search.digit(value);
      if (its_digit == last) return;
      const std::int64_t its_part = part(mass);
      for (int digit = 0; digit < digits; ++digit) sums.of[digit] += digit == its_digit ? its_part : 0;
    });
    team.team_reduce(SumOf<DigitSums>(sums));
    return sums;
  }

  KOKKOS_FUNCTION Limit find_limit(const Member& team, std::int64_t list, const Segment& of) const {
    SegmentTotals totals;  // of this thread, then of the team
    for_each_mass(team, list, of, [&](const std::int64_t item, const std::int64_t mass) {
      const std::int64_t its_part = part(mass);
      const bool forced = is_forced(of, item);
      totals += {its_part, forced ? its_part : 0, forced ? 0 : worth_of_mass(mass, masses.is_wide(item))};
    });
    team.team_reduce(SumOf<SegmentTotals>(totals));
    const std::int64_t wanted_of_rest = wanted(of, totals);
    if (wanted_of_rest <= 0) return {Limit::none, -1};

    Search worths(wanted_of_rest, totals.bits);
    while (worths.shift > 0) {
      const bool all = worths.add_digit<true>(digit_sums<false>(team, list, of, worths));
      // Items worth nothing do not come in before they are needed.
      if (all && worths.number > 0) return {worths.number << worths.shift, Limit::none};
    }
    Search places(worths.rest, masses.items - 1);
    bool all = false;
    while (places.shift > 0 && !all)
      all = places.add_digit<false>(digit_sums<true>(team, list, of, places, worths.number));
    return {worths.number, ((places.number + 1) << places.shift) - 1};
  }

  /// 32 items as a word of bits.
  KOKKOS_FUNCTION std::uint32_t word(std::int64_t list, std::int64_t w) const {
    std::int64_t known = -1;  // the segment of the next two
    Segment own{};
    Limit limit{};
    std::uint32_t bits = 0;
    for (std::int64_t item = w * word_bits; item < (w + 1) * word_bits && item < masses.items; ++item) {
      const std::int64_t which = segment_of(item);
      if (which < 0) continue;
      if (which != known) {
        known = which;
        own = segment(which);
        limit = limits[list * segments.count + which];
      }
      const std::int64_t worth = worth_of_mass(mass(list, item), masses.is_wide(item));
      if (is_forced(own, item) || limit.has(worth, item)) bits |= 1u << (item - w * word_bits);
    }
    return bits;
  }
};

}  // namespace choose_detail

/// Chooses the items of each list that are worth most (worth_of_mass); of equal ones those with the lower
/// number. All of `wanted` have as many lists and segments, and are chosen in the same kernels. Works with
/// sums of integers alone, so that the result does not depend on who adds what.
template <class Exec, std::size_t count>
void choose_largest(const Exec& exec, const Wanted<Exec> (&wanted)[count]) {
  using namespace choose_detail;  // NOLINT(google-build-using-namespace): helpers of this function
  const auto lists = static_cast<std::int64_t>(wanted[0].chosen.extent(0)),
             segments = wanted[0].segments.count, all = lists * segments;
  using Choosing = RadixSelection<Exec>;
  const auto limits = Owned<Array2<Limit, Exec>>::uninitialized(exec, MemoryCategory::workspace,
                                                                "annulus::sparsity::limits", count, all);
  Kokkos::Array<Choosing, count> choices;
  std::int64_t longest = 0, words = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Wanted<Exec>& of = wanted[i];
    choices[i] = {of.masses, of.budget, of.chosen, of.segments,
                  limits.view().data() + static_cast<std::int64_t>(i) * all};
    longest = std::max(longest, of.masses.items);
    words += static_cast<std::int64_t>(of.chosen.size());
  }

  // One multiprocessor reads a long list: with many threads, which then have 128 registers each.
  constexpr bool host = Kokkos::SpaceAccessibility<Exec, Kokkos::HostSpace>::accessible;
  constexpr int most_threads = 512;
  const int threads = host ? 1 : longest / segments < 1024 ? 128 : most_threads;
  using Member = typename Choosing::Member;
  Kokkos::parallel_for(
      "annulus::sparsity::find_limits",
      Kokkos::TeamPolicy<Exec, Kokkos::LaunchBounds<most_threads>>(
          exec, static_cast<int>(count) * static_cast<int>(all), threads),
      KOKKOS_LAMBDA(const Member& team) {
        const std::int64_t which = team.league_rank() / all, rest = team.league_rank() % all;
        for (std::size_t c = 0; c < count; ++c) {
          if (static_cast<std::int64_t>(c) != which) continue;
          const Choosing& choice = choices[c];
          const Limit limit = choice.find_limit(team, rest / segments, choice.segment(rest % segments));
          Kokkos::single(Kokkos::PerTeam(team), [&] { choice.limits[rest] = limit; });
        }
      });
  Kokkos::parallel_for(
      "annulus::sparsity::choose_largest", Kokkos::RangePolicy<Exec>(exec, 0, words),
      KOKKOS_LAMBDA(std::int64_t i) {
        for (std::size_t c = 0; c < count; ++c) {
          const auto& chosen = choices[c].chosen;
          const auto size = static_cast<std::int64_t>(chosen.size()),
                     of_list = static_cast<std::int64_t>(chosen.extent(1));
          if (i >= 0 && i < size)
            chosen(i / of_list, i % of_list) = choices[c].word(i / of_list, i % of_list);
          i -= size;
        }
      });
}

/// Sets the first `items` bits of each row of words, (lists, rows, words), and clears the others.
template <class Exec>
void choose_all(const Exec& exec, std::int64_t items, const Array3<std::uint32_t, Exec>& chosen) {
  const auto words = static_cast<std::int64_t>(chosen.extent(2));
  Kokkos::parallel_for(
      "annulus::sparsity::choose_all", Kokkos::RangePolicy<Exec>(exec, 0, chosen.size()),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t rest = items - i % words * word_bits;
        chosen.data()[i] = rest >= word_bits ? ~0u : (1u << rest) - 1u;
      });
}

}  // namespace annulus::sparsity
