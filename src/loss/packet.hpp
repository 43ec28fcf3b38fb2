#pragma once

#include <Kokkos_Core.hpp>
#include <annulus/base/float16.hpp>
#include <cstring>

namespace annulus::loss::detail {

/// Elements that a thread reads and writes at a time: 32 bytes of fp32, 16 of bfloat16.
inline constexpr int packet_size = 8;

template <class T>
struct alignas(16) Packet {
  T value[packet_size];
};

/// Copies a packet from or to memory that is aligned as one. The same memory holds values of two types in
/// turn (logits, then gradients): on the host that takes memcpy, and devices are given loads and stores of 16
/// bytes.
template <class T>
KOKKOS_FUNCTION Packet<T> load_packet(const T* from) {
  Packet<T> packet;
  KOKKOS_IF_ON_HOST((std::memcpy(static_cast<void*>(&packet), from, sizeof(packet));))
  KOKKOS_IF_ON_DEVICE((packet = *reinterpret_cast<const Packet<T>*>(from);))
  return packet;
}

template <class T>
KOKKOS_FUNCTION void store_packet(T* to, const Packet<float>& values) {
  Packet<T> packet;
  for (int i = 0; i < packet_size; ++i) packet.value[i] = T(values.value[i]);
  KOKKOS_IF_ON_HOST((std::memcpy(static_cast<void*>(to), &packet, sizeof(packet));))
  KOKKOS_IF_ON_DEVICE((*reinterpret_cast<Packet<T>*>(to) = packet;))
}

}  // namespace annulus::loss::detail
