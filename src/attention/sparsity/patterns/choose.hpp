#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <annulus/attention/sparsity/options.hpp>
#include <annulus/base/division.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/sparsity/bits.hpp"
#include "attention/sparsity/patterns/radix_search.hpp"
#include "attention/sparsity/selection_memory.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "base/kokkos/pack.hpp"
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

  static constexpr std::int64_t items_of_part = items_of_short_list;
};

/// The parts of segments.
inline std::vector<SegmentPart> parts_of(std::span<const Segment> segments) {
  std::vector<SegmentPart> parts;
  for (std::int64_t i = 0; i < std::ssize(segments); ++i) {
    const Segment& of = segments[static_cast<std::size_t>(i)];
    for (auto [first, end] : {std::pair(of.first, of.end), std::pair(of.first_wide, of.end_wide)}) {
      for (; first < end; first += Segments::items_of_part)
        parts.push_back({i, first, std::min(first + Segments::items_of_part, end)});
    }
  }
  return parts;
}

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

/// Chooses of all lists, a pass over the items for each digit. Where lists are long, the first passes have a
/// kernel each, in which many teams share a list: else a device would have work for few of its
/// multiprocessors. Then a team for each segment makes the passes that are left, mostly none.
template <class Exec>
struct RadixSelection {
  Masses masses;
  Budget budget;
  Array2<std::uint32_t, Exec> chosen;
  Segments segments;
  // Of the segments of all lists, one after another. A pass of many teams reads what the one before has left,
  // and clears the sums of the next one.
  SegmentTotals* totals = nullptr;
  DigitSums* sums = nullptr;   // (turns_of_sums, segments)
  Search* searches = nullptr;  // (turns_of_searches, segments)
  Limit* limits = nullptr;     // (segments)
  std::int64_t all_segments = 0;

  static constexpr int turns_of_sums = 3, turns_of_searches = 2;
  static_assert(choice_bytes(Segments::items_of_part + 1, 1) ==
                sizeof(SegmentTotals) + turns_of_sums * sizeof(DigitSums) +
                    turns_of_searches * sizeof(Search) + sizeof(Limit));
  static constexpr int threads = detail::host_memory<Exec> ? 1 : 128, passes_of_many_teams = 8;

  // Four teams an SM: with eight, the sums of 16 digits leave the registers, and lists of 256 items take 2.8
  // times as long on an H200.
  using Policy = Kokkos::TeamPolicy<Exec, Kokkos::LaunchBounds<128, 4>>;
  using Member = typename Policy::member_type;

  KOKKOS_FUNCTION DigitSums& sums_of(int pass, std::int64_t at) const {
    return sums[pass % turns_of_sums * all_segments + at];
  }
  KOKKOS_FUNCTION Search& search_of(int pass, std::int64_t at) const {
    return searches[pass % turns_of_searches * all_segments + at];
  }

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

  /// A segment before its first digit.
  KOKKOS_FUNCTION Search first_search(const Segment& own, const SegmentTotals& of) const {
    std::int64_t wanted = Kokkos::min(budget.count, own.items());
    if (by_mass()) {
      const double share = Kokkos::ceil(budget.recall * static_cast<double>(of.all));
      wanted = share < static_cast<double>(of.all) ? static_cast<std::int64_t>(share) : of.all;
    }
    Search search;
    search.rest = wanted - of.forced;
    search.start(of.bits);
    if (search.rest <= 0) {
      search.done = true;
    } else if (search.shift == 0) {
      search.start_places(masses.items);
    }
    return search;
  }
  /// Segment `at` of all lists before a pass of many teams, or behind the last one.
  KOKKOS_FUNCTION Search before(int pass, std::int64_t at) const {
    if (pass == 0) return first_search(segment(at % segments.count), totals[at]);
    const Search last = search_of(pass - 1, at);
    return last.done ? last : last.behind(sums_of(pass - 1, at), masses.items);
  }

  /// Calls action(item, mass) for the items of a team's part, each by one of its threads.
  template <class Action>
  KOKKOS_FUNCTION void for_each_mass(const Member& team, std::int64_t list, const SegmentPart& of,
                                     const Action& action) const {
    constexpr int at_once = 8;  // loads that do not wait for each other
    for (std::int64_t first = of.first + team.team_rank(); first < of.end; first += at_once * threads) {
      std::int64_t loaded[at_once];
      for (int i = 0; i < at_once; ++i)
        loaded[i] = first + i * threads < of.end ? mass(list, first + i * threads) : 0;
      for (int i = 0; i < at_once; ++i)
        if (first + i * threads < of.end) action(first + i * threads, loaded[i]);
    }
  }

  /// Adds what each thread has of a part.
  KOKKOS_FUNCTION void add_totals(const Member& team, std::int64_t list, const Segment& own,
                                  const SegmentPart& of, SegmentTotals& to) const {
    for_each_mass(team, list, of, [&](const std::int64_t item, const std::int64_t mass) {
      const std::int64_t its_part = part(mass);
      const bool forced = is_forced(own, item);
      to += {its_part, forced ? its_part : 0, forced ? 0 : worth_of_mass(mass, masses.is_wide(item))};
    });
  }
  KOKKOS_FUNCTION void add_digits(const Member& team, std::int64_t list, const Segment& own,
                                  const SegmentPart& of, const Search& search, DigitSums& to) const {
    const int last = search.last_digit();
    for_each_mass(team, list, of, [&](const std::int64_t item, const std::int64_t mass) {
      const int its_digit = search.digit(item, worth_of_mass(mass, masses.is_wide(item)));
      if (its_digit < 0 || its_digit == last || is_forced(own, item)) return;
      const std::int64_t its_part = part(mass);
      for (int digit = 0; digit < digits; ++digit) to.of[digit] += digit == its_digit ? its_part : 0;
    });
  }

  /// The totals of a part.
  KOKKOS_FUNCTION void total(const Member& team, std::int64_t list, const SegmentPart& of) const {
    SegmentTotals of_part;
    add_totals(team, list, segment(of.segment), of, of_part);
    team.team_reduce(SumOf<SegmentTotals>(of_part));
    SegmentTotals& to = totals[list * segments.count + of.segment];
    Kokkos::single(Kokkos::PerTeam(team), [&] {
      Kokkos::atomic_add(&to.all, of_part.all);
      if (of_part.forced != 0) Kokkos::atomic_add(&to.forced, of_part.forced);
      Kokkos::atomic_or(&to.bits, of_part.bits);
    });
  }
  /// A part's share in a pass of many teams.
  KOKKOS_FUNCTION void sum_digits(const Member& team, std::int64_t list, const SegmentPart& of,
                                  int pass) const {
    const std::int64_t at = list * segments.count + of.segment;
    const Segment own = segment(of.segment);
    const Search search = before(pass, at);
    if (of.first == (own.end > own.first ? own.first : own.first_wide))  // one team of the segment
      Kokkos::single(Kokkos::PerTeam(team), [&] {
        search_of(pass, at) = search;
        sums_of(pass + 1, at) = {};
      });
    if (search.done) return;
    DigitSums of_part;
    add_digits(team, list, own, of, search, of_part);
    team.team_reduce(SumOf<DigitSums>(of_part));
    Kokkos::single(Kokkos::PerTeam(team), [&] {
      for (int digit = 0; digit < digits; ++digit)
        if (of_part.of[digit] != 0) Kokkos::atomic_add(&sums_of(pass, at).of[digit], of_part.of[digit]);
    });
  }
  /// Ends the search of segment `at` of all lists, behind so many passes of many teams.
  KOKKOS_FUNCTION void finish(const Member& team, std::int64_t at, int passes) const {
    const std::int64_t which = at % segments.count, list = at / segments.count;
    const Segment own = segment(which);
    const SegmentPart keys{which, own.first, own.end}, wide{which, own.first_wide, own.end_wide};
    Search search;
    if (passes == 0 || own.items() == 0) {  // an empty one has no part, and no search
      SegmentTotals of_segment;
      add_totals(team, list, own, keys, of_segment);
      add_totals(team, list, own, wide, of_segment);
      team.team_reduce(SumOf<SegmentTotals>(of_segment));
      search = first_search(own, of_segment);
    } else {
      search = before(passes, at);
    }
    while (!search.done) {
      DigitSums of_segment;
      add_digits(team, list, own, keys, search, of_segment);
      add_digits(team, list, own, wide, search, of_segment);
      team.team_reduce(SumOf<DigitSums>(of_segment));
      search = search.behind(of_segment, masses.items);
    }
    Kokkos::single(Kokkos::PerTeam(team), [&] { limits[at] = search.limit; });
  }

  /// 32 items as a word of bits.
  KOKKOS_FUNCTION std::uint32_t word(std::int64_t list, std::int64_t w) const {
    std::int64_t known = -1;  // the segment of the next two
    Segment own{};
    Limit limit{};
    std::uint32_t bits = 0;
    constexpr int at_once = 8;  // loads that do not wait for each other
    for (int begin = 0; begin < word_bits; begin += at_once) {
      const std::int64_t first = w * word_bits + begin;
      std::int64_t loaded[at_once];
      for (int i = 0; i < at_once; ++i) loaded[i] = mass(list, Kokkos::min(first + i, masses.items - 1));
      for (int i = 0; i < at_once && first + i < masses.items; ++i) {
        const std::int64_t item = first + i, which = segment_of(item);
        if (which < 0) continue;
        if (which != known) {
          known = which;
          own = segment(which);
          limit = limits[list * segments.count + which];
        }
        const std::int64_t worth = worth_of_mass(loaded[i], masses.is_wide(item));
        if (is_forced(own, item) || limit.has(worth, item)) bits |= 1u << (begin + i);
      }
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
  using Choosing = RadixSelection<Exec>;
  using Member = typename Choosing::Member;
  const std::int64_t lists = wanted[0].chosen.extent_int(0), segments = lists * wanted[0].segments.count;
  std::int64_t longest = 0, words = 0;
  for (const Wanted<Exec>& of : wanted) {
    longest = std::max(longest, of.masses.items);
    words += static_cast<std::int64_t>(of.chosen.size());
  }
  const int passes = longest > Segments::items_of_part ? Choosing::passes_of_many_teams : 0;
  const std::int64_t in_passes = passes > 0 ? segments : 0;
  constexpr auto workspace = MemoryCategory::workspace;
  const auto totals = Owned<Array2<SegmentTotals, Exec>>::zeroed(exec, workspace, "annulus::sparsity::totals",
                                                                 count, in_passes);
  const auto sums = Owned<Array3<DigitSums, Exec>>::zeroed(exec, workspace, "annulus::sparsity::digit_sums",
                                                           count, Choosing::turns_of_sums, in_passes);
  const auto searches = Owned<Array3<Search, Exec>>::uninitialized(
      exec, workspace, "annulus::sparsity::searches", count, Choosing::turns_of_searches, in_passes);
  const auto limits = Owned<Array2<Limit, Exec>>::uninitialized(exec, workspace, "annulus::sparsity::limits",
                                                                count, segments);
  RadixSelections<Exec, count> choices;
  for (std::size_t i = 0; i < count; ++i) {
    const Wanted<Exec>& of = wanted[i];
    const auto number = static_cast<std::int64_t>(i);
    choices.all[i] = {of.masses,
                      of.budget,
                      of.chosen,
                      of.segments,
                      totals.view().data() + number * in_passes,
                      sums.view().data() + number * Choosing::turns_of_sums * in_passes,
                      searches.view().data() + number * Choosing::turns_of_searches * in_passes,
                      limits.view().data() + number * segments,
                      in_passes};
  }

  using Policy = typename Choosing::Policy;
  if (passes > 0) {
    const Policy policy(exec, static_cast<int>(lists) * static_cast<int>(choices.teams_of_list()),
                        Choosing::threads);
    Kokkos::parallel_for(
        "annulus::sparsity::total_masses", policy, KOKKOS_LAMBDA(const Member& team) {
          choices.of_team(team, [&](const Choosing& choice, std::int64_t list, const SegmentPart& part) {
            choice.total(team, list, part);
          });
        });
    for (int pass = 0; pass < passes; ++pass) {
      Kokkos::parallel_for(
          "annulus::sparsity::digit_sums", policy, KOKKOS_LAMBDA(const Member& team) {
            choices.of_team(team, [&](const Choosing& choice, std::int64_t list, const SegmentPart& part) {
              choice.sum_digits(team, list, part, pass);
            });
          });
    }
  }
  Kokkos::parallel_for(
      "annulus::sparsity::last_digits",
      Policy(exec, static_cast<int>(count) * static_cast<int>(segments), Choosing::threads),
      KOKKOS_LAMBDA(const Member& team) {
        for (std::size_t c = 0; c < count; ++c) {
          const std::int64_t at = team.league_rank() - static_cast<std::int64_t>(c) * segments;
          if (at >= 0 && at < segments) choices.all[c].finish(team, at, passes);
        }
      });
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
