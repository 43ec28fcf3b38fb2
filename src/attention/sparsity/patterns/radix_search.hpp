#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>

/// Radix selection among numbers that many threads hold: which sums it needs of them, and what it makes of
/// these.
namespace annulus::sparsity::choose_detail {

inline constexpr int digit_bits = 4, digits = 1 << digit_bits;

/// What the items with each value of a digit bring.
struct DigitSums {
  std::int64_t of[digits] = {};

  KOKKOS_FUNCTION DigitSums& operator+=(const DigitSums& other) {
    for (int digit = 0; digit < digits; ++digit) of[digit] += other.of[digit];
    return *this;
  }
};

/// What items bring, the forced ones alone, and the bits that the others' worths have.
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

/// Where the sum of the items' parts reaches what is wanted, by radix selection: first the worth, counted
/// from the largest one down, then the place of the last of the items that have it, from 0 up. Its digits
/// above bit `shift` are known.
struct Search {
  std::int64_t rest = 0;  ///< what the items before it lack
  std::int64_t number = 0;
  std::int64_t worth = 0;  ///< when places are looked for
  std::int32_t shift = 0;
  bool of_places = false;
  bool done = false;  ///< `limit` is known
  Limit limit = {Limit::none, -1};

  /// A search among numbers up to `largest`.
  KOKKOS_FUNCTION void start(std::int64_t largest) {
    number = 0;
    for (shift = 0; largest != 0; largest >>= digit_bits) shift += digit_bits;
  }
  KOKKOS_FUNCTION void start_places(std::int64_t items) {
    worth = number;
    of_places = true;
    start(items - 1);
    if (shift == 0) end({worth, 0});
  }
  KOKKOS_FUNCTION void end(const Limit& found) {
    limit = found;
    done = true;
  }

  /// The digit that an item has next, −1 of one that is not looked at.
  KOKKOS_FUNCTION int digit(std::int64_t item, std::int64_t its_worth) const {
    if (of_places && its_worth != worth) return -1;
    const std::int64_t from_here = (of_places ? item : its_worth) >> (shift - digit_bits);
    return from_here >> digit_bits == number ? static_cast<int>(from_here & (digits - 1)) : -1;
  }
  /// The last digit that is looked at, which is taken without its sum: most masses are small, and have it.
  KOKKOS_FUNCTION int last_digit() const { return of_places ? digits - 1 : 0; }

  /// The search with one digit more, of which `sums` are the items' parts, among lists of so many items.
  KOKKOS_FUNCTION Search behind(const DigitSums& sums, std::int64_t items) const {
    Search next = *this;
    // Sums before the digit that is found: without a branch, so that a device loads all of them at once.
    std::int64_t sum = 0, before = 0;
    int passed = 0;    // digits
    bool all = false;  // whether all items that have the digits are wanted
    for (int i = 0; i + 1 < digits; ++i) {
      sum += of_places ? sums.of[i] : sums.of[digits - 1 - i];
      passed = sum < rest ? i + 1 : passed;
      before = sum < rest ? sum : before;
      all = all || sum == rest;
    }
    const int found = of_places ? passed : digits - 1 - passed;
    next.rest -= before;
    next.number = number << digit_bits | found;
    next.shift -= digit_bits;
    const std::int64_t lowest = next.number << next.shift;
    if (of_places) {
      if (all || next.shift == 0) next.end({worth, lowest + (std::int64_t{1} << next.shift) - 1});
    } else if (all && next.number > 0) {  // items worth nothing do not come in before they are needed
      next.end({lowest, Limit::none});
    } else if (next.shift == 0) {
      next.start_places(items);
    }
    return next;
  }
};

}  // namespace annulus::sparsity::choose_detail
