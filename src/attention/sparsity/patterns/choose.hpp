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

namespace annulus::sparsity {

/// How many items are chosen: the fewest whose masses sum to a share of all mass, or a number of them.
struct Budget {
  double recall = 0;  ///< 0: `count`
  std::int64_t count = 0;
  std::int64_t forced = 0;  ///< the first items, which are chosen whatever their mass and count in the budget
  std::int64_t forced_wide = 0;  ///< the first of the wide items, chosen as these are
};

/// The masses of all lists: `items` of them, list by list `stride` apart, each below 2^`bits`, at most 2⁶².
/// The items from `first_wide` on are slashes among keys: they cost as many pairs as block_tokens keys.
struct Masses {
  const std::int64_t* first;
  std::int64_t stride, items;
  int bits = 63;
  std::int64_t first_wide = items;

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
/// Items first … end − 1 of a segment, which a team sums up.
struct SegmentPart {
  std::int64_t segment, first, end;
};

/// How the items of each list fall into segments, in memory of the execution space. Items of no segment are
/// not chosen. By default all items are one.
struct Segments {
  const Segment* all = nullptr;  ///< increasing
  std::int64_t count = 1;
  const SegmentPart* parts = nullptr;  ///< items_of_part items each, or fewer
  std::int64_t count_of_parts = 0;

  static constexpr std::int64_t items_of_part = 1024;
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

inline int passes_of_bits(int bits) {
  return std::max(1, ceil_divide(bits, digit_bits));
}
inline int place_passes(std::int64_t items) {
  return passes_of_bits(static_cast<int>(std::bit_width(static_cast<std::uint64_t>(items))));
}

/// Radix selection of all lists, a pass over the items for each digit of the worth at which the budget is
/// reached, and then of the last of the items that have it: kernel after kernel, so that the whole device
/// works for the few lists that there are.
template <class Exec>
struct RadixSelection {
  Masses masses;
  Budget budget;
  Array2<std::uint32_t, Exec> chosen;
  Segments segments;
  int worth_passes, passes;  ///< all, those of places behind those of worths
  /// A segment of a list before a pass: what is known so far of the worth, or of the place among the items
  /// that have it.
  struct ListState {
    Reached reached;
    std::int64_t threshold;  // the worth, when places are looked for
  };
  // Views of a part of the lists have strides. Segments are counted over the lists.
  Kokkos::View<std::int64_t**, Kokkos::LayoutStride, Exec>
      totals;  // (segments, 2): parts of all items, and of the forced ones
  Kokkos::View<std::int64_t***, Kokkos::LayoutStride, Exec>
      sums;  // (passes, segments, digits), 0 before the passes
  Kokkos::View<ListState**, Kokkos::LayoutStride, Exec> states;  // (passes, segments)

  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;

  KOKKOS_FUNCTION bool by_mass() const { return budget.recall > 0; }
  KOKKOS_FUNCTION std::int64_t mass(std::int64_t list, std::int64_t item) const {
    return masses.first[list * masses.stride + item];
  }
  KOKKOS_FUNCTION std::int64_t worth(std::int64_t list, std::int64_t item) const {
    return worth_of_mass(mass(list, item), masses.is_wide(item));
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
  /// What the items that are not forced have to bring, of segment `at` of all lists.
  KOKKOS_FUNCTION std::int64_t wanted(std::int64_t at) const {
    const std::int64_t items = segment(at % segments.count).items();
    std::int64_t target = budget.count < items ? budget.count : items;
    if (by_mass()) {
      const std::int64_t total = totals(at, 0);
      const double share = Kokkos::ceil(budget.recall * static_cast<double>(total));
      target = share < static_cast<double>(total) ? static_cast<std::int64_t>(share) : total;
    }
    return target - totals(at, 1);
  }

  /// A segment before pass `pass`, or behind the last one.
  KOKKOS_FUNCTION ListState before(int pass, std::int64_t at) const {
    if (pass == 0) return {{0, wanted(at)}, 0};
    const ListState& last = states(pass - 1, at);
    const std::int64_t* const of_digits = &sums(pass - 1, at, 0);
    if (pass > worth_passes) return {last.reached.template behind<false>(of_digits), last.threshold};
    const Reached reached = last.reached.template behind<true>(of_digits);
    if (pass < worth_passes) return {reached, 0};
    return {{0, reached.rest}, reached.number};
  }

  /// Calls action(item, mass) for the items of a team's part, each by one of its threads.
  template <class Action>
  KOKKOS_FUNCTION void for_each_mass(const Member& team, std::int64_t list, const SegmentPart& of,
                                     const Action& action) const {
    constexpr int at_once = 4;  // loads that do not wait for each other
    const std::int64_t threads = team.team_size();
    for (std::int64_t first = of.first + team.team_rank(); first < of.end; first += at_once * threads) {
      std::int64_t loaded[at_once];
      for (int i = 0; i < at_once; ++i)
        loaded[i] = first + i * threads < of.end ? mass(list, first + i * threads) : 0;
      for (int i = 0; i < at_once; ++i)
        if (first + i * threads < of.end) action(first + i * threads, loaded[i]);
    }
  }

  /// Adds what the threads of a team have to *sum.
  KOKKOS_FUNCTION static void add_up(const Member& team, std::int64_t of_thread, std::int64_t* sum) {
    team.team_reduce(Kokkos::Sum<std::int64_t>(of_thread));
    Kokkos::single(Kokkos::PerTeam(team), [&] {
      if (of_thread != 0) Kokkos::atomic_add(sum, of_thread);
    });
  }

  KOKKOS_FUNCTION void add_totals(const Member& team, std::int64_t list, const SegmentPart& of) const {
    const std::int64_t at = list * segments.count + of.segment;
    const Segment own = segment(of.segment);
    std::int64_t all = 0, forced = 0;  // of this thread
    for_each_mass(team, list, of, [&](const std::int64_t item, const std::int64_t mass) {
      const std::int64_t value = part(mass);
      all += value;
      forced += is_forced(own, item) ? value : 0;
    });
    add_up(team, all, &totals(at, 0));
    add_up(team, forced, &totals(at, 1));
  }

  KOKKOS_FUNCTION void add_digits(const Member& team, std::int64_t list, const SegmentPart& of,
                                  int pass) const {
    const std::int64_t at = list * segments.count + of.segment;
    const Segment own = segment(of.segment);
    const ListState state = before(pass, at);
    const int shift = digits_left(pass) * digit_bits;
    const bool of_places = pass >= worth_passes;
    if (of.first == own.first) Kokkos::single(Kokkos::PerTeam(team), [&] { states(pass, at) = state; });
    if (wanted(at) <= 0) return;
    std::int64_t of_digits[digits] = {};  // of this thread
    unsigned seen = 0;                    // a bit for each digit
    for_each_mass(team, list, of, [&](const std::int64_t item, const std::int64_t mass) {
      const std::int64_t its_worth = worth_of_mass(mass, masses.is_wide(item));
      if (of_places && its_worth != state.threshold) return;
      const std::int64_t from_here = (of_places ? item : its_worth) >> shift;
      if (from_here >> digit_bits != state.reached.number || is_forced(own, item)) return;
      const std::int64_t value = part(mass);
      seen |= 1u << (from_here & (digits - 1));
      // Without an index that the compiler does not know the sums stay in registers.
      for (int digit = 0; digit < digits; ++digit)
        of_digits[digit] += (from_here & (digits - 1)) == digit ? value : 0;
    });
    // Few teams still have items behind the first passes, and mostly of one digit.
    team.team_reduce(Kokkos::BOr<unsigned>(seen));
    for (; seen != 0; seen &= seen - 1) {
      const int wanted_digit = Kokkos::countr_zero(seen);
      std::int64_t of_digit = 0;
      for (int digit = 0; digit < digits; ++digit) of_digit += digit == wanted_digit ? of_digits[digit] : 0;
      add_up(team, of_digit, &sums(pass, at, wanted_digit));
    }
  }

  KOKKOS_FUNCTION int digits_left(int pass) const {
    return (pass < worth_passes ? worth_passes : passes) - 1 - pass;
  }
  KOKKOS_FUNCTION std::int64_t teams() const {
    return segments.all != nullptr ? segments.count_of_parts
                                   : ceil_divide(masses.items, Segments::items_of_part);
  }
  /// What team `team` of a list sums up.
  KOKKOS_FUNCTION SegmentPart part_of_team(std::int64_t team) const {
    if (segments.all != nullptr) return segments.parts[team];
    const std::int64_t first = team * Segments::items_of_part, end = first + Segments::items_of_part;
    return {0, first, end < masses.items ? end : masses.items};
  }

  /// 32 items as a word of bits: all above the threshold are chosen, and the first of those that equal it.
  KOKKOS_FUNCTION std::uint32_t word(std::int64_t list, std::int64_t w) const {
    std::int64_t known = -1;  // the segment of the next three
    Segment own{};
    ListState end{};
    bool none = true;  // but for the forced ones
    std::uint32_t bits = 0;
    for (std::int64_t item = w * word_bits; item < (w + 1) * word_bits && item < masses.items; ++item) {
      const std::int64_t which = segment_of(item);
      if (which < 0) continue;
      if (which != known) {
        const std::int64_t at = list * segments.count + which;
        known = which;
        own = segment(which);
        none = wanted(at) <= 0;
        end = before(passes, at);
      }
      const std::int64_t its_worth = worth(list, item);
      const bool large =
          its_worth > end.threshold || (its_worth == end.threshold && item <= end.reached.number);
      if (is_forced(own, item) || (large && !none)) bits |= 1u << (item - w * word_bits);
    }
    return bits;
  }
};

/// Several such choices, whose passes run in the same kernels: a kernel of few items takes as long as one of
/// many.
template <class Exec, std::size_t count>
struct RadixSelections {
  Kokkos::Array<RadixSelection<Exec>, count> all;

  KOKKOS_FUNCTION std::int64_t teams_of_list() const {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += all[i].teams();
    return sum;
  }
  /// Calls action(choice, list, part) for a team, of teams_of_list() for each list.
  template <class Action>
  KOKKOS_FUNCTION void of_team(const typename RadixSelection<Exec>::Member& team,
                               const Action& action) const {
    const std::int64_t teams = teams_of_list(), list = team.league_rank() / teams;
    std::int64_t rest = team.league_rank() % teams;
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t its = all[i].teams();
      if (rest >= 0 && rest < its) action(all[i], list, all[i].part_of_team(rest));
      rest -= its;
    }
  }
};

}  // namespace choose_detail

/// Chooses the items of each list that are worth most (worth_of_mass); of equal ones those with the lower
/// number. All of `wanted` have as many lists and segments. Works with sums of integers alone, so that the
/// result does not depend on who adds what.
template <class Exec, std::size_t count>
void choose_largest(const Exec& exec, const Wanted<Exec> (&wanted)[count]) {
  using namespace choose_detail;  // NOLINT(google-build-using-namespace): helpers of this function
  const std::size_t lists = wanted[0].chosen.extent(0),
                    segments = lists * static_cast<std::size_t>(wanted[0].segments.count);
  int worth_passes = 0, places = 0;
  for (const Wanted<Exec>& of : wanted) {
    worth_passes = std::max(worth_passes, passes_of_bits(of.masses.bits));
    places = std::max(places, place_passes(of.masses.items));
  }
  const int passes = worth_passes + places;
  constexpr auto workspace = MemoryCategory::workspace;
  using Choosing = RadixSelection<Exec>;
  const auto totals = Owned<Array2<std::int64_t, Exec>>::zeroed(exec, workspace, "annulus::sparsity::totals",
                                                                count * segments, 2);
  const auto sums = Owned<Array3<std::int64_t, Exec>>::zeroed(
      exec, workspace, "annulus::sparsity::digit_sums", passes, count * segments, digits);
  const auto states = Owned<Kokkos::View<typename Choosing::ListState**, Exec>>::uninitialized(
      exec, workspace, "annulus::sparsity::choice", passes, count * segments);
  const auto choice_of = [&](std::size_t i) -> Choosing {
    const Kokkos::pair<std::size_t, std::size_t> own(i * segments, (i + 1) * segments);
    return {wanted[i].masses,
            wanted[i].budget,
            wanted[i].chosen,
            wanted[i].segments,
            worth_passes,
            passes,
            Kokkos::subview(totals.view(), own, Kokkos::ALL),
            Kokkos::subview(sums.view(), Kokkos::ALL, own, Kokkos::ALL),
            Kokkos::subview(states.view(), Kokkos::ALL, own)};
  };
  const RadixSelections<Exec, count> choices = [&]<std::size_t... i>(std::index_sequence<i...>) {
    return RadixSelections<Exec, count>{{choice_of(i)...}};
  }
  (std::make_index_sequence<count>());

  using Member = typename Choosing::Member;
  const Kokkos::TeamPolicy<Exec> policy(
      exec, static_cast<int>(lists) * static_cast<int>(choices.teams_of_list()), Kokkos::AUTO);
  Kokkos::parallel_for(
      "annulus::sparsity::total_masses", policy, KOKKOS_LAMBDA(const Member& team) {
        choices.of_team(team, [&](const Choosing& choice, std::int64_t list, const SegmentPart& part) {
          choice.add_totals(team, list, part);
        });
      });
  for (int pass = 0; pass < passes; ++pass) {
    Kokkos::parallel_for(
        "annulus::sparsity::digit_sums", policy, KOKKOS_LAMBDA(const Member& team) {
          choices.of_team(team, [&](const Choosing& choice, std::int64_t list, const SegmentPart& part) {
            choice.add_digits(team, list, part, pass);
          });
        });
  }
  std::int64_t words = 0;
  for (const Wanted<Exec>& of : wanted) words += static_cast<std::int64_t>(of.chosen.size());
  Kokkos::parallel_for(
      "annulus::sparsity::choose_largest", Kokkos::RangePolicy<Exec>(exec, 0, words),
      KOKKOS_LAMBDA(std::int64_t i) {
        for (std::size_t c = 0; c < count; ++c) {
          const auto& chosen = choices.all[c].chosen;
          const auto size = static_cast<std::int64_t>(chosen.size()),
                     of_list = static_cast<std::int64_t>(chosen.extent(1));
          if (i >= 0 && i < size)
            chosen(i / of_list, i % of_list) = choices.all[c].word(i / of_list, i % of_list);
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
