#pragma once

#include <Kokkos_Core.hpp>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <annulus/base/device_code.hpp>
#include <annulus/base/dtype.hpp>

namespace annulus {

/// What a device's caches do with what is loaded or stored. `pass` (stores): it goes first when they are
/// full, so that what others read again stays; for results larger than the caches. `stay` (loads of 16
/// bytes): it goes last, for what is soon read again. Hints.
enum class Caching { keep, pass, stay };

namespace detail {
template <class Exec>
inline constexpr bool host_memory =
    Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename Exec::memory_space>::accessible;

/// What a device loads and stores at once.
template <int count>
struct alignas(4 * count) Words {
  std::uint32_t word[count];
};
/// Words at once of `width` elements of T: 16 bytes or else 8; 0 where elements go one by one.
template <int width, class T>
inline constexpr int words_at_once = width * sizeof(T) % 16 == 0  ? 4
                                     : width * sizeof(T) % 8 == 0 ? 2
                                                                  : 0;
template <int words, class T>
inline constexpr int elements_of = words * 4 / static_cast<int>(sizeof(T));
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

/// Two numbers rounded to T, bfloat16 or float16.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t two_of(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  std::uint32_t both;
  if constexpr (std::is_same_v<T, bfloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  }
  return both;
#else
  return std::uint32_t{T(low).bits} | (std::uint32_t{T(high).bits} << 16);
#endif
}

/// One load: of a struct's members the compiler makes as many as there are, each of which leaves gaps between
/// the lanes of a warp.
template <Caching caching = Caching::keep, int words>
KOKKOS_FORCEINLINE_FUNCTION Words<words> get(const Words<words>* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (words == 4 && caching == Caching::stay) {
    std::uint64_t policy;
    Words<4> all;
    asm("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(policy));
    asm volatile("ld.global.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(all.word[0]), "=r"(all.word[1]), "=r"(all.word[2]), "=r"(all.word[3])
                 : "l"(from), "l"(policy));
    return all;
  }
#endif
#ifdef ANNULUS_DEVICE_PASS
  if constexpr (words == 4) {
    const uint4 all = *reinterpret_cast<const uint4*>(from);
    return {{all.x, all.y, all.z, all.w}};
  } else if constexpr (words == 2) {
    const uint2 all = *reinterpret_cast<const uint2*>(from);
    return {{all.x, all.y}};
  }
#endif
  return *from;
}

template <Caching caching>
KOKKOS_FORCEINLINE_FUNCTION void put(Words<4>* to, const Words<4>& from) {
#if defined(__CUDA_ARCH__)
  if constexpr (caching == Caching::pass) {
    asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(to), "r"(from.word[0]), "r"(from.word[1]), "r"(from.word[2]), "r"(from.word[3])
                 : "memory");
  } else {
    *to = from;
  }
#else
  *to = from;
#endif
}
template <Caching caching>
KOKKOS_FORCEINLINE_FUNCTION void put(Words<2>* to, const Words<2>& from) {
  *to = from;
}

template <class T, int words>
KOKKOS_FORCEINLINE_FUNCTION void unpack(const Words<words>& from, float* to) {
  for (int w = 0; w < words; ++w) {
    if constexpr (std::is_same_v<T, float>) {
      to[w] = std::bit_cast<float>(from.word[w]);
    } else if constexpr (std::is_same_v<T, bfloat16>) {
      to[2 * w] = std::bit_cast<float>(from.word[w] << 16);
      to[2 * w + 1] = std::bit_cast<float>(from.word[w] & 0xffff0000u);
    } else {
      static_assert(std::is_same_v<T, float16>);
      to[2 * w] = static_cast<float>(std::bit_cast<T>(static_cast<std::uint16_t>(from.word[w])));
      to[2 * w + 1] = static_cast<float>(std::bit_cast<T>(static_cast<std::uint16_t>(from.word[w] >> 16)));
    }
  }
}

template <class T, int words>
KOKKOS_FORCEINLINE_FUNCTION Words<words> pack(const float* from) {
  Words<words> to;
  for (int w = 0; w < words; ++w) {
    if constexpr (std::is_same_v<T, float>) {
      to.word[w] = std::bit_cast<std::uint32_t>(from[w]);
    } else {
      static_assert(std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>);
      to.word[w] = two_of<T>(from[2 * w], from[2 * w + 1]);
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

/// from[0, width) as fp32. On a device a pack of whole 16 bytes must start at a multiple of 16 bytes, and one
/// of whole 8 bytes at a multiple of 8.
template <int width, class T>
KOKKOS_FORCEINLINE_FUNCTION Pack<width> load(const T* from) {
  Pack<width> to;
  KOKKOS_IF_ON_DEVICE((
      constexpr int words = detail::words_at_once<width, T>; if constexpr (words != 0) {
        for (int i = 0; i < width; i += detail::elements_of<words, T>)
          detail::unpack<T>(detail::get(reinterpret_cast<const detail::Words<words>*>(from + i)),
                            to.values + i);
      } else { detail::load_each(from, to); }))
  KOKKOS_IF_ON_HOST((detail::load_each(from, to);))
  return to;
}

/// to[0, width) = from, rounded to T. Alignment as for load.
template <Caching caching = Caching::keep, int width, class T>
KOKKOS_FORCEINLINE_FUNCTION void store(T* to, const Pack<width>& from) {
  KOKKOS_IF_ON_DEVICE((
      constexpr int words = detail::words_at_once<width, T>; if constexpr (words != 0) {
        for (int i = 0; i < width; i += detail::elements_of<words, T>)
          detail::put<caching>(reinterpret_cast<detail::Words<words>*>(to + i),
                               detail::pack<T, words>(from.values + i));
      } else { detail::store_each(to, from); }))
  KOKKOS_IF_ON_HOST((detail::store_each(to, from);))
}

/// `width` neighbouring elements as they are stored: what a thread holds of a row that it needs again, in few
/// registers. Memory that holds values of two types in turn (logits, then their gradients) is read and
/// written this way: the host copies bytes, where load and store let its compiler take the two for different
/// memory.
template <int width, class T>
struct Held {
  static constexpr int words = detail::words_at_once<width, T>;
  using Part = std::conditional_t<words != 0, detail::Words<words == 0 ? 1 : words>, T>;
  static constexpr int count = width * static_cast<int>(sizeof(T)) / static_cast<int>(sizeof(Part));
  Part parts[count];

  KOKKOS_FORCEINLINE_FUNCTION Pack<width> values() const {
    Pack<width> all;
    if constexpr (words != 0) {
      for (int i = 0; i < count; ++i)
        detail::unpack<T>(parts[i], all.values + i * detail::elements_of<words, T>);
    } else {
      for (int i = 0; i < count; ++i) all[i] = static_cast<float>(parts[i]);
    }
    return all;
  }
};

/// Values rounded to T.
template <class T, int width>
KOKKOS_FORCEINLINE_FUNCTION Held<width, T> held_as(const Pack<width>& values) {
  Held<width, T> to;
  for (int i = 0; i < to.count; ++i) {
    if constexpr (Held<width, T>::words != 0) {
      constexpr int words = Held<width, T>::words;
      to.parts[i] = detail::pack<T, words>(values.values + i * detail::elements_of<words, T>);
    } else {
      to.parts[i] = T(values[i]);
    }
  }
  return to;
}

/// from[0, width). Alignment as for load.
template <int width, Caching caching = Caching::keep, class T>
KOKKOS_FORCEINLINE_FUNCTION Held<width, T> hold(const T* from) {
  Held<width, T> to;
  KOKKOS_IF_ON_DEVICE((using Part = typename Held<width, T>::Part; for (int i = 0; i < to.count; ++i) {
    if constexpr (Held<width, T>::words != 0) {
      to.parts[i] = detail::get<caching>(reinterpret_cast<const Part*>(from) + i);
    } else {
      to.parts[i] = from[i];
    }
  }))
  KOKKOS_IF_ON_HOST(
      (std::memcpy(static_cast<void*>(to.parts), static_cast<const void*>(from), sizeof(to.parts));))
  return to;
}

/// to[0, width) = from, bit for bit.
template <Caching caching = Caching::keep, int width, class T>
KOKKOS_FORCEINLINE_FUNCTION void store(T* to, const Held<width, T>& from) {
  KOKKOS_IF_ON_DEVICE((using Part = typename Held<width, T>::Part; for (int i = 0; i < from.count; ++i) {
    if constexpr (Held<width, T>::words != 0) {
      detail::put<caching>(reinterpret_cast<Part*>(to) + i, from.parts[i]);
    } else {
      to[i] = from.parts[i];
    }
  }))
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
