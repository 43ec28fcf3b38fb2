#include "attention/comm/reductions/reduce.hpp"

#include <annulus/base/error.hpp>

#include <algorithm>
#include <bit>
#include <type_traits>
#include <vector>

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

/// On the host: elements [begin, begin + length) of ranks [first, end), into `sum`; behind it there is room
/// for the sums of a half, a quarter, … of the ranks.
template <class T, class Op>
void reduce_tile(Op op, const Contributions& all, int first, int end, std::size_t begin, std::size_t length,
                 Accumulator<T>* sum) {
  const auto source = [&](int rank) { return reinterpret_cast<const T*>(all.of(rank)) + begin; };
  if (end - first == 1) {
    for (std::size_t i = 0; i < length; ++i) sum[i] = static_cast<Accumulator<T>>(source(first)[i]);
    return;
  }
  const int middle = first + static_cast<int>(std::bit_floor(static_cast<unsigned>(end - first - 1)));
  reduce_tile<T>(op, all, first, middle, begin, length, sum);
  if (end - middle == 1) {
    const T* const last = source(middle);
    for (std::size_t i = 0; i < length; ++i) sum[i] = op(sum[i], static_cast<Accumulator<T>>(last[i]));
    return;
  }
  Accumulator<T>* const second = sum + length;
  reduce_tile<T>(op, all, middle, end, begin, length, second);
  for (std::size_t i = 0; i < length; ++i) sum[i] = op(sum[i], second[i]);
}

template <class T, class Op>
void reduce_on_host(Op op, const Contributions& all, T* out, std::size_t count) {
  constexpr std::size_t tile = 1024;  // sums stay in the caches while the sources stream by
  std::vector<Accumulator<T>> sums(tile * static_cast<std::size_t>(std::bit_width(unsigned(all.ranks))));
  for (std::size_t begin = 0; begin < count; begin += tile) {
    const std::size_t n = std::min(tile, count - begin);
    reduce_tile<T>(op, all, 0, all.ranks, begin, n, sums.data());
    for (std::size_t i = 0; i < n; ++i) out[begin + i] = static_cast<T>(sums[i]);
  }
}

/// On a device: combines load(0), …, load(ranks − 1). `combine(a, b)` lets a be a op b.
template <class Value, class Load, class Combine>
KOKKOS_FUNCTION Value reduce_pairs(int ranks, const Load& load, const Combine& combine) {
  constexpr int group = 8;         // so many are loaded at a time, and combined in registers
  constexpr int most_levels = 28;  // of groups of ranks
  // Sums of ever smaller numbers of groups that stand next to each other.
  Value sums[most_levels];
  int held = 0;
  for (int first = 0, number = 0; first < ranks; first += group, ++number) {
    const int length = ranks - first < group ? ranks - first : group;
    Value values[group];
    for (int r = 0; r < group; ++r)
      if (r < length) values[r] = load(first + r);
    for (int width = 1; width < group; width *= 2)
      for (int r = 0; r + width < group; r += 2 * width)
        if (r + width < length) combine(values[r], values[r + width]);
    if (ranks <= group) return values[0];
    for (int pairs = number; pairs % 2 == 1; pairs /= 2) {
      Value& before = sums[--held];
      combine(before, values[0]);
      values[0] = before;
    }
    sums[held++] = values[0];
  }
  for (; held > 1; --held) combine(sums[held - 2], sums[held - 1]);
  return sums[0];
}

/// Elements from `begin` on.
template <class T, class Op, class Exec>
void reduce_elements(const Exec& exec, Op op, const Contributions& all, T* out, std::int64_t begin,
                     std::int64_t end) {
  if (begin == end) return;
  Kokkos::parallel_for(
      "annulus::comm::reduce", ElementRange<Exec>(exec, begin, end), KOKKOS_LAMBDA(const std::int64_t i) {
        using A = Accumulator<T>;
        out[i] = static_cast<T>(reduce_pairs<A>(
            all.ranks, [&](int r) { return static_cast<A>(reinterpret_cast<const T*>(all.of(r))[i]); },
            [&](A& a, const A& b) { a = op(a, b); }));
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
        using Values = decltype(load<width>(static_cast<const float*>(nullptr)));
        const auto sum = reduce_pairs<Values>(
            all.ranks,
            [&](int r) { return load<width>(reinterpret_cast<const float*>(all.of(r)) + i * width); },
            [&](Values& a, const Values& b) {
              for (int e = 0; e < width; ++e) a[e] = op(a[e], b[e]);
            });
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
