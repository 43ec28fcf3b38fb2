#pragma once

#include <annulus/attention/kernels/local.hpp>
#include <cstdint>

#include "attention/kernels/gpu/problem.hpp"

/// Turns Views into the plain pointers of the kernels.
namespace annulus::attention::gpu {

/// Whether rows start at multiples of `bytes`.
template <class View>
bool aligned(const View& view, std::size_t bytes) {
  bool result = reinterpret_cast<std::uintptr_t>(view.data()) % bytes == 0;
  for (std::size_t i = 0; i + 1 < View::rank(); ++i) {
    result =
        result && (view.extent(i) <= 1 || view.stride(i) * sizeof(typename View::value_type) % bytes == 0);
  }
  return result;
}

template <class View>
Rows<typename View::value_type> rows_of(const View& view) {
  if (view.data() == nullptr) return {};  // strides of no array mean nothing
  return {view.data(), static_cast<std::int64_t>(view.stride(0)), static_cast<std::int64_t>(view.stride(1)),
          static_cast<std::int64_t>(view.stride(2))};
}

template <class Exec, class T>
Input<T> input_of(const Operands<T, Exec>& in) {
  return {rows_of(in.q),
          rows_of(in.k),
          rows_of(in.v),
          in.q_positions,
          in.kv_positions,
          in.mask,
          in.scale,
          static_cast<int>(in.q.extent(0)),
          static_cast<int>(in.q.extent(1)),
          static_cast<int>(in.k.extent(1)),
          static_cast<int>(in.q.extent(3)),
          in.soft_cap,
          in.kv_listed,
          static_cast<int>(in.v.extent(3))};
}

}  // namespace annulus::attention::gpu
