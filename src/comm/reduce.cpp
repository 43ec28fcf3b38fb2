#include "comm/reduce.hpp"

#include <annulus/base/error.hpp>

#include <algorithm>
#include <array>
#include <type_traits>

namespace annulus::comm {

namespace {

struct Sum {
  template <class A>
  A operator()(A a, A b) const {
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
  A operator()(A a, A b) const {
    return a < b || b != b ? b : a;  // b != b: a NaN
  }
};
struct Min {
  template <class A>
  A operator()(A a, A b) const {
    return b < a || b != b ? b : a;
  }
};

template <class T, class Op>
void reduce_typed(Op op, std::span<const void* const> sources, void* out, std::size_t count) {
  using Accumulator = std::conditional_t<sizeof(T) == 2, float, T>;
  constexpr std::size_t tile = 1024;  // accumulators stay in the first cache while the sources stream by
  std::array<Accumulator, tile> sum;
  for (std::size_t begin = 0; begin < count; begin += tile) {
    const std::size_t n = std::min(tile, count - begin);
    for (std::size_t s = 0; s < sources.size(); ++s) {
      const T* source = static_cast<const T*>(sources[s]) + begin;
      if (s == 0)
        for (std::size_t i = 0; i < n; ++i) sum[i] = static_cast<Accumulator>(source[i]);
      else
        for (std::size_t i = 0; i < n; ++i) sum[i] = op(sum[i], static_cast<Accumulator>(source[i]));
    }
    T* target = static_cast<T*>(out) + begin;
    for (std::size_t i = 0; i < n; ++i) target[i] = static_cast<T>(sum[i]);
  }
}

template <class Op>
void reduce_with(DType type, Op op, std::span<const void* const> sources, void* out, std::size_t count) {
  switch (type) {
    case DType::f32:
      return reduce_typed<float>(op, sources, out, count);
    case DType::bf16:
      return reduce_typed<bfloat16>(op, sources, out, count);
    case DType::f16:
      return reduce_typed<float16>(op, sources, out, count);
    case DType::f64:
      return reduce_typed<double>(op, sources, out, count);
    case DType::i32:
      return reduce_typed<std::int32_t>(op, sources, out, count);
    case DType::i64:
      return reduce_typed<std::int64_t>(op, sources, out, count);
    default:
      fail("reductions are over floating-point numbers, i32 and i64, not {}", name_of(type));
  }
}

}  // namespace

void reduce_in_order(DType type, ReduceOp op, std::span<const void* const> sources, void* out,
                     std::size_t count) {
  switch (op) {
    case ReduceOp::sum:
      return reduce_with(type, Sum{}, sources, out, count);
    case ReduceOp::max:
      return reduce_with(type, Max{}, sources, out, count);
    case ReduceOp::min:
      return reduce_with(type, Min{}, sources, out, count);
  }
}

}  // namespace annulus::comm
