#include "attention/comm/reductions/reduce.hpp"

#include <annulus/base/error.hpp>

#include <algorithm>
#include <array>
#include <type_traits>

#include "base/kokkos/pack.hpp"
#include "base/kokkos/range.hpp"
#include "base/with_dtype.hpp"

namespace annulus::comm {

namespace reduce_detail {  // named: device compilers want lambdas and their captures to have linkage

struct Sum {
  template <class A>
  KOKKOS_FUNCTION A operator()(A a, A b) const {
    if constexpr (std::is_integral_v<A>) {
      using U = std::make_unsigned_t<A>;
      return static_cast<A>(static_cast<U>(a) + static_cast<U>(b));
    } else {
      return a + b;
    }
  }
};
struct Max {
  template <class A>
  KOKKOS_FUNCTION A operator()(A a, A b) const {
    return a < b || b != b ? b : a;  // b != b: a NaN
  }
};
struct Min {
  template <class A>
  KOKKOS_FUNCTION A operator()(A a, A b) const {
    return b < a || b != b ? b : a;
  }
};

template <class T>
using Accumulator = std::conditional_t<sizeof(T) == 2, float, T>;

template <class T, class Op>
void reduce_on_host(Op op, const Contributions& all, T* out, std::size_t count) {
  constexpr std::size_t tile = 1024;  // accumulators stay in the first cache while the sources stream by
  std::array<Accumulator<T>, tile> sum;
  for (std::size_t begin = 0; begin < count; begin += tile) {
    const std::size_t n = std::min(tile, count - begin);
    for (int r = 0; r < all.ranks; ++r) {
      const T* source = reinterpret_cast<const T*>(all.of(r)) + begin;
      if (r == 0)
        for (std::size_t i = 0; i < n; ++i) sum[i] = static_cast<Accumulator<T>>(source[i]);
      else
        for (std::size_t i = 0; i < n; ++i) sum[i] = op(sum[i], static_cast<Accumulator<T>>(source[i]));
    }
    for (std::size_t i = 0; i < n; ++i) out[begin + i] = static_cast<T>(sum[i]);
  }
}

/// Elements from `begin` on.
template <class T, class Op, class Exec>
void reduce_elements(const Exec& exec, Op op, const Contributions& all, T* out, std::int64_t begin,
                     std::int64_t end) {
  if (begin == end) return;
  Kokkos::parallel_for(
      "annulus::comm::reduce", ElementRange<Exec>(exec, begin, end), KOKKOS_LAMBDA(const std::int64_t i) {
        auto sum = static_cast<Accumulator<T>>(reinterpret_cast<const T*>(all.of(0))[i]);
        for (int r = 1; r < all.ranks; ++r) {
          sum = op(sum, static_cast<Accumulator<T>>(reinterpret_cast<const T*>(all.of(r))[i]));
        }
        out[i] = static_cast<T>(sum);
      });
}

/// Whether all arrays start at multiples of 16 bytes.
inline bool aligned(const Contributions& all, const void* out) {
  const auto starts_well = [](const void* array) {
    return reinterpret_cast<std::uintptr_t>(array) % 16 == 0;
  };
  return starts_well(all.first) && starts_well(all.own) && starts_well(out) && all.stride % 16 == 0;
}

/// Gradients, the largest sums: 16 bytes at a time. Returns up to which element.
template <class Op, class Exec>
std::int64_t reduce_packs(const Exec& exec, Op op, const Contributions& all, float* out, std::int64_t count) {
  constexpr int width = pack_width<Exec, float>;
  if (count < width || !aligned(all, out)) return 0;
  Kokkos::parallel_for(
      "annulus::comm::reduce_packs", ElementRange<Exec>(exec, 0, count / width),
      KOKKOS_LAMBDA(const std::int64_t i) {
        auto sum = load<width>(reinterpret_cast<const float*>(all.of(0)) + i * width);
        for (int r = 1; r < all.ranks; ++r) {
          const auto more = load<width>(reinterpret_cast<const float*>(all.of(r)) + i * width);
          for (int e = 0; e < width; ++e) sum[e] = op(sum[e], more[e]);
        }
        store(out + i * width, sum);
      });
  return count / width * width;
}

template <class T, class Op, class Exec>
void reduce_on_device(const Exec& exec, Op op, const Contributions& all, T* out, std::size_t count) {
  const auto end = static_cast<std::int64_t>(count);
  std::int64_t begin = 0;
  if constexpr (std::is_same_v<T, float>) begin = reduce_packs(exec, op, all, out, end);
  reduce_elements<T>(exec, op, all, out, begin, end);
}

template <class T, class Op>
void reduce_typed(const Queue& queue, Op op, const Contributions& all, void* out, std::size_t count) {
  if (queue.is_host()) return reduce_on_host<T>(op, all, static_cast<T*>(out), count);
  const auto* exec = queue.instance<Kokkos::DefaultExecutionSpace>();
  require(exec != nullptr, "reductions of device memory are for queues of {}",
          Kokkos::DefaultExecutionSpace::name());
  reduce_on_device<T>(*exec, op, all, static_cast<T*>(out), count);
}

template <class Op>
void reduce_with(const Queue& queue, DType type, Op op, const Contributions& all, void* out,
                 std::size_t count) {
  require(with_dtype<float, bfloat16, float16, double, std::int32_t, std::int64_t>(
              type, [&](auto zero) { reduce_typed<decltype(zero)>(queue, op, all, out, count); }),
          "reductions are over floating-point numbers, i32 and i64, not {}", name_of(type));
}

}  // namespace reduce_detail

void reduce_in_order(const Queue& queue, DType type, ReduceOp op, const Contributions& all, void* out,
                     std::size_t count) {
  using namespace reduce_detail;  // NOLINT(google-build-using-namespace): this file's own helpers
  if (op == ReduceOp::sum) return reduce_with(queue, type, Sum{}, all, out, count);
  if (op == ReduceOp::max) return reduce_with(queue, type, Max{}, all, out, count);
  reduce_with(queue, type, Min{}, all, out, count);
}

}  // namespace annulus::comm
