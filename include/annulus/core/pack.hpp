#pragma once

#include <Kokkos_Core.hpp>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <annulus/base/float16.hpp>

namespace annulus {

namespace detail {
template <class Exec>
inline constexpr bool host_memory =
    Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename Exec::memory_space>::accessible;

/// What a device loads and stores at once.
struct alignas(16) Words {
  std::uint32_t word[4];
};
template <class T>
inline constexpr int in_words = static_cast<int>(sizeof(Words) / sizeof(T));  ///< elements of T
}  // namespace detail

/// Elements of T that a thread of a bandwidth-bound kernel takes at a time: 128 bits on a device, so that a
/// warp touches whole lines; on the host what fills a register as fp32.
template <class Exec, class T>
inline constexpr int pack_width = detail::host_memory<Exec> ? 8 : 16 / static_cast<int>(sizeof(T));

/// `width` neighbouring elements as fp32.
template <int width>
struct alignas(width % 4 == 0 ? 16 : 4) Pack {
  float values[width];

  KOKKOS_FORCEINLINE_FUNCTION float& operator[](int i) { return values[i]; }
  KOKKOS_FORCEINLINE_FUNCTION float operator[](int i) const { return values[i]; }
  KOKKOS_FORCEINLINE_FUNCTION float sum() const {
    float total = values[0];
    for (int i = 1; i < width; ++i) total += values[i];
    return total;
  }
};

namespace detail {

KOKKOS_FORCEINLINE_FUNCTION std::uint32_t two_bfloat16(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  std::uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#else
  return std::uint32_t{bfloat16(low).bits} | (std::uint32_t{bfloat16(high).bits} << 16);
#endif
}

template <class T>
KOKKOS_FORCEINLINE_FUNCTION void unpack(const Words& from, float* to) {
  for (int w = 0; w < 4; ++w) {
    if constexpr (std::is_same_v<T, float>) {
      to[w] = std::bit_cast<float>(from.word[w]);
    } else {
      static_assert(std::is_same_v<T, bfloat16>);
      to[2 * w] = std::bit_cast<float>(from.word[w] << 16);
      to[2 * w + 1] = std::bit_cast<float>(from.word[w] & 0xffff0000u);
    }
  }
}

template <class T>
KOKKOS_FORCEINLINE_FUNCTION Words pack(const float* from) {
  Words to;
  for (int w = 0; w < 4; ++w) {
    if constexpr (std::is_same_v<T, float>) {
      to.word[w] = std::bit_cast<std::uint32_t>(from[w]);
    } else {
      static_assert(std::is_same_v<T, bfloat16>);
      to.word[w] = two_bfloat16(from[2 * w], from[2 * w + 1]);
    }
  }
  return to;
}

template <int width, class T>
KOKKOS_FORCEINLINE_FUNCTION void load_each(const T* from, Pack<width>& to) {
  for (int i = 0; i < width; ++i) to[i] = static_cast<float>(from[i]);
}

template <int width, class T>
KOKKOS_FORCEINLINE_FUNCTION void store_each(T* to, const Pack<width>& from) {
  for (int i = 0; i < width; ++i) to[i] = T(from[i]);
}

}  // namespace detail

/// from[0, width) as fp32. On a device a pack of whole 16 bytes must start at a multiple of 16 bytes.
template <int width, class T>
KOKKOS_FORCEINLINE_FUNCTION Pack<width> load(const T* from) {
  Pack<width> to;
  KOKKOS_IF_ON_DEVICE((
      if constexpr (width % detail::in_words<T> == 0) {
        for (int i = 0; i < width; i += detail::in_words<T>)
          detail::unpack<T>(*reinterpret_cast<const detail::Words*>(from + i), to.values + i);
      } else { detail::load_each(from, to); }))
  KOKKOS_IF_ON_HOST((detail::load_each(from, to);))
  return to;
}

/// to[0, width) = from, rounded to T. Alignment as for load.
template <int width, class T>
KOKKOS_FORCEINLINE_FUNCTION void store(T* to, const Pack<width>& from) {
  KOKKOS_IF_ON_DEVICE((
      if constexpr (width % detail::in_words<T> == 0) {
        for (int i = 0; i < width; i += detail::in_words<T>)
          *reinterpret_cast<detail::Words*>(to + i) = detail::pack<T>(from.values + i);
      } else { detail::store_each(to, from); }))
  KOKKOS_IF_ON_HOST((detail::store_each(to, from);))
}

/// `width` neighbouring elements as they are stored: what a thread holds of a row that it needs again, in few
/// registers.
template <int width, class T>
struct Held {
  static constexpr bool in_words = width % detail::in_words<T> == 0;
  using Part = std::conditional_t<in_words, detail::Words, T>;
  static constexpr int count = in_words ? width / detail::in_words<T> : width;
  Part parts[count];

  KOKKOS_FORCEINLINE_FUNCTION Pack<width> values() const {
    Pack<width> all;
    if constexpr (in_words) {
      for (int i = 0; i < count; ++i) detail::unpack<T>(parts[i], all.values + i * detail::in_words<T>);
    } else {
      for (int i = 0; i < count; ++i) all[i] = static_cast<float>(parts[i]);
    }
    return all;
  }
};

/// from[0, width). Alignment as for load.
template <int width, class T>
KOKKOS_FORCEINLINE_FUNCTION Held<width, T> hold(const T* from) {
  Held<width, T> to;
  KOKKOS_IF_ON_DEVICE((for (int i = 0; i < to.count; ++i) to.parts[i] =
                           reinterpret_cast<const typename Held<width, T>::Part*>(from)[i];))
  KOKKOS_IF_ON_HOST(
      (std::memcpy(static_cast<void*>(to.parts), static_cast<const void*>(from), sizeof(to.parts));))
  return to;
}

/// to[0, width) = from, bit for bit.
template <int width, class T>
KOKKOS_FORCEINLINE_FUNCTION void store(T* to, const Held<width, T>& from) {
  KOKKOS_IF_ON_DEVICE((for (int i = 0; i < from.count;
                            ++i) reinterpret_cast<typename Held<width, T>::Part*>(to)[i] = from.parts[i];))
  KOKKOS_IF_ON_HOST(
      (std::memcpy(static_cast<void*>(to), static_cast<const void*>(from.parts), sizeof(from.parts));))
}

/// Whether rows of `columns` elements can be taken in packs of pack_width<Exec, T>: the columns are a
/// multiple of it, and on a device the arrays start at multiples of 16 bytes. Otherwise kernels take packs of
/// one element.
template <class Exec, class T, class... Views>
bool in_packs(std::int64_t columns, const Views&... views) {
  if (columns % pack_width<Exec, T> != 0) return false;
  return detail::host_memory<Exec> || ((reinterpret_cast<std::uintptr_t>(views.data()) % 16 == 0) && ...);
}

/// Calls body(std::integral_constant<int, width>()) with the width of the packs that a kernel is to take.
template <class Exec, class T, class Body>
void with_pack_width(bool packs, const Body& body) {
  if (packs) {
    body(std::integral_constant<int, pack_width<Exec, T>>());
  } else {
    body(std::integral_constant<int, 1>());
  }
}

}  // namespace annulus
