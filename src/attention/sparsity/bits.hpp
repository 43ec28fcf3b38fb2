#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>

/// Bits in arrays of 32-bit words.
namespace annulus::sparsity {

inline constexpr std::int64_t word_bits = 32;

KOKKOS_INLINE_FUNCTION bool bit_of(const std::uint32_t* words, std::int64_t i) {
  return (words[i / word_bits] >> (i % word_bits) & 1u) != 0;
}

/// Bits 0 … end − 1 that are set.
KOKKOS_INLINE_FUNCTION std::int64_t bits_below(const std::uint32_t* words, std::int64_t end) {
  std::int64_t count = 0;
  for (std::int64_t w = 0; w < end / word_bits; ++w) count += Kokkos::popcount(words[w]);
  const auto rest = static_cast<std::uint32_t>(end % word_bits);
  if (rest > 0) count += Kokkos::popcount(words[end / word_bits] & ((1u << rest) - 1u));
  return count;
}

/// Calls f(bit) for the bits 0 … end − 1 that are set, from the lowest one on.
template <class F>
KOKKOS_INLINE_FUNCTION void for_each_bit_below(const std::uint32_t* words, std::int64_t end, const F& f) {
  for (std::int64_t first = 0; first < end; first += word_bits) {
    std::uint32_t word = words[first / word_bits];
    if (end - first < word_bits) word &= (1u << (end - first)) - 1u;
    for (; word != 0; word &= word - 1) f(first + Kokkos::countr_zero(word));
  }
}

/// Bits set one after another from bit `first` on, at most `most`.
KOKKOS_INLINE_FUNCTION std::int64_t leading_bits(const std::uint32_t* words, std::int64_t first,
                                                 std::int64_t most) {
  std::int64_t count = 0;
  while (count < most) {
    const std::int64_t at = first + count, in_word = at % word_bits;
    const int here = Kokkos::countr_one(words[at / word_bits] >> in_word);
    count += here;
    if (in_word + here < word_bits) break;
  }
  return count < most ? count : most;
}

}  // namespace annulus::sparsity
