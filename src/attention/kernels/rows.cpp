// Operations on rows of (out, lse): the neutral element, merging, sinks, conversion, rowsum(dO∘O).

#include <annulus/base/division.hpp>

#include "attention/kernels/check.hpp"
#include "attention/kernels/merge_row.hpp"
#include "base/kokkos/instantiate.hpp"
#include "base/kokkos/pack.hpp"

namespace annulus::attention {
namespace {

template <class Exec>
using RowMember = typename Kokkos::TeamPolicy<Exec>::member_type;

/// Lanes of a row. On a device every lane finds out where its row lies, which takes longer than the elements
/// of a row: a row has a quarter of a warp.
template <class Exec>
inline constexpr int lanes_of_row = detail::host_memory<Exec> ? 1 : 8;

/// Runs action(member, batch, head, row) for each row, the columns left to the member's vector lanes.
template <class Exec, class Action>
void for_each_row(const Exec& exec, const char* label, const Strided3<const float, Exec>& shape,
                  const Action& action) {
  // Host: one thread takes 64 rows, so that a team costs little beside them.
  constexpr bool host = detail::host_memory<Exec>;
  constexpr int rows_per_team = host ? 64 : 32, threads = host ? 1 : 16;
  const auto heads = static_cast<std::int64_t>(shape.extent(1)),
             tokens = static_cast<std::int64_t>(shape.extent(2));
  const std::int64_t rows = static_cast<std::int64_t>(shape.extent(0)) * heads * tokens;
  if (rows == 0) return;
  const std::int64_t teams = ceil_divide(rows, rows_per_team);
  require(teams <= std::numeric_limits<int>::max(),
          "{}: {} rows are more than one launch can hold: split the batch", label, rows);
  Kokkos::parallel_for(
      label, Kokkos::TeamPolicy<Exec>(exec, static_cast<int>(teams), threads, lanes_of_row<Exec>),
      KOKKOS_LAMBDA(const RowMember<Exec>& member) {
        const std::int64_t first = static_cast<std::int64_t>(member.league_rank()) * rows_per_team;
        const int count = static_cast<int>(Kokkos::min<std::int64_t>(rows_per_team, rows - first));
        Kokkos::parallel_for(Kokkos::TeamThreadRange(member, count), [&](int i) {
          const auto call = [&](auto row, auto of_tokens, auto of_heads) {
            const auto head = row / of_tokens;
            action(member, static_cast<std::int64_t>(head / of_heads),
                   static_cast<std::int64_t>(head % of_heads), static_cast<std::int64_t>(row % of_tokens));
          };
          // Divisions in 64 bits take longer than reading a row.
          using Short = std::uint32_t;
          if (rows <= std::numeric_limits<Short>::max())
            call(static_cast<Short>(first + i), static_cast<Short>(tokens), static_cast<Short>(heads));
          else
            call(first + i, tokens, heads);
        });
      });
}

/// Whether a device can read rows of `view` in packs of `pack` elements.
template <class View>
bool rows_in_packs(const View& view, int pack) {
  bool whole = view.extent(3) % pack == 0 &&
               reinterpret_cast<std::uintptr_t>(view.data()) % (pack * sizeof(*view.data())) == 0;
  for (int dimension = 0; dimension < 3; ++dimension) whole = whole && view.stride(dimension) % pack == 0;
  return whole;
}

/// rowsum(dO∘O), in packs of `pack` columns.
template <int pack, class Exec, class T, class Out>
void sum_products(const Exec& exec, const Strided4<const Out, Exec>& out,
                  const Strided4<const T, Exec>& d_out, const Strided3<float, Exec>& d) {
  // Packs that a lane adds up apart, so that their loads do not wait for each other.
  constexpr int lanes = lanes_of_row<Exec>, at_once = detail::host_memory<Exec> ? 1 : 4;
  const int packs = static_cast<int>(out.extent(3)) / pack;
  for_each_row<Exec>(
      exec, "annulus::attention::row_dot", d,
      KOKKOS_LAMBDA(const RowMember<Exec>& member, std::int64_t b, std::int64_t h, std::int64_t i) {
        const Out* const row = &out(b, h, i, 0);
        const T* const gradient = &d_out(b, h, i, 0);
        float sum = 0.0f;
        Kokkos::parallel_reduce(
            Kokkos::ThreadVectorRange(member, lanes),
            [&](int lane, float& of_lane) {
              float partial[at_once] = {};
              for (int first = lane; first < packs; first += at_once * lanes) {
                for (int p = 0; p < at_once; ++p) {
                  const int c = first + p * lanes;
                  if (c >= packs) continue;
                  const Pack<pack> x = load<pack>(row + c * pack), y = load<pack>(gradient + c * pack);
                  for (int e = 0; e < pack; ++e) partial[p] += x[e] * y[e];
                }
              }
              // As 32 lanes would add them up.
              for (int half = at_once / 2; half > 0; half /= 2)
                for (int p = 0; p < half; ++p) partial[p] += partial[p + half];
              of_lane += partial[0];
            },
            sum);
        Kokkos::single(Kokkos::PerThread(member), [&] { d(b, h, i) = sum; });
      });
}

template <int width, class Exec, class T>
void convert_packs(const Exec& exec, const Strided4<const float, Exec>& from, const Strided4<T, Exec>& to) {
  const int packs = static_cast<int>(from.extent(3)) / width;
  for_each_row<Exec>(
      exec, "annulus::attention::convert", Kokkos::subview(from, Kokkos::ALL, Kokkos::ALL, Kokkos::ALL, 0),
      KOKKOS_LAMBDA(const RowMember<Exec>& member, std::int64_t b, std::int64_t h, std::int64_t i) {
        const float* const in = &from(b, h, i, 0);
        T* const out = &to(b, h, i, 0);
        Kokkos::parallel_for(Kokkos::ThreadVectorRange(member, packs),
                             [&](int pack) { store(out + pack * width, load<width>(in + pack * width)); });
      });
}

/// join_sinks with the result in `to`, in packs of `pack` columns.
template <int pack, class Exec, class T, class To>
void join_packs(const Exec& exec, const ForwardArrays<T, Exec>& arrays, const Strided4<To, Exec>& to) {
  const int packs = static_cast<int>(to.extent(3)) / pack;
  for_each_row<Exec>(
      exec, "annulus::attention::join_sinks", arrays.lse,
      KOKKOS_LAMBDA(const RowMember<Exec>& member, std::int64_t b, std::int64_t h, std::int64_t i) {
        // The keys come to the sink: their weight is then no difference of two numbers near 1.
        const RowMerge step = RowMerge::of(static_cast<float>(arrays.sinks(h)), arrays.lse(b, h, i));
        const float* const from = &arrays.out(b, h, i, 0);
        To* const row = &to(b, h, i, 0);
        Kokkos::parallel_for(Kokkos::ThreadVectorRange(member, packs), [&](int c) {
          Pack<pack> values = load<pack>(from + c * pack);
          for (int e = 0; e < pack; ++e) values[e] *= step.weight;
          store(row + c * pack, values);
        });
        Kokkos::single(Kokkos::PerThread(member), [&] { arrays.lse(b, h, i) = step.lse; });
      });
}

template <class Exec, class T, class To>
void join_into(const Exec& exec, const ForwardArrays<T, Exec>& arrays, const Strided4<To, Exec>& to) {
  constexpr int pack = detail::host_memory<Exec> ? 8 : 4;  // as convert
  if (rows_in_packs(arrays.out, pack) && rows_in_packs(to, pack)) {
    join_packs<pack>(exec, arrays, to);
  } else {
    join_packs<1>(exec, arrays, to);
  }
}

}  // namespace

template <class Exec>
void start_forward(const Exec& exec, const Strided4<float, Exec>& out, const Strided3<float, Exec>& lse) {
  check_array("lse", lse, "out", out);
  check_contiguous_rows("out", out);
  const int width = static_cast<int>(out.extent(3));
  for_each_row<Exec>(
      exec, "annulus::attention::start_forward", lse,
      KOKKOS_LAMBDA(const RowMember<Exec>& member, std::int64_t b, std::int64_t h, std::int64_t i) {
        float* const row = &out(b, h, i, 0);
        Kokkos::parallel_for(Kokkos::ThreadVectorRange(member, width), [&](int c) { row[c] = 0.0f; });
        Kokkos::single(Kokkos::PerThread(member),
                       [&] { lse(b, h, i) = -Kokkos::Experimental::infinity_v<float>; });
      });
}

template <class Exec>
void merge(const Exec& exec, const Strided4<const float, Exec>& other_out,
           const Strided3<const float, Exec>& other_lse, const Strided4<float, Exec>& out,
           const Strided3<float, Exec>& lse) {
  check_array("lse", lse, "out", out);
  check_array("other_out", other_out, "out", out);
  check_array("other_lse", other_lse, "lse", lse);
  check_contiguous_rows("out", out);
  const int width = static_cast<int>(out.extent(3));
  for_each_row<Exec>(
      exec, "annulus::attention::merge", lse,
      KOKKOS_LAMBDA(const RowMember<Exec>& member, std::int64_t b, std::int64_t h, std::int64_t i) {
        const RowMerge step = RowMerge::of(lse(b, h, i), other_lse(b, h, i));
        if (step.weight == 0.0f) {  // nothing comes in; what belongs to no key is not read
          Kokkos::single(Kokkos::PerThread(member), [&] { lse(b, h, i) = step.lse; });
          return;
        }
        float* const row = &out(b, h, i, 0);
        const float* const other = &other_out(b, h, i, 0);
        Kokkos::parallel_for(Kokkos::ThreadVectorRange(member, width),
                             [&](int c) { row[c] -= step.weight * (row[c] - other[c]); });
        Kokkos::single(Kokkos::PerThread(member), [&] { lse(b, h, i) = step.lse; });
      });
}

template <class Exec, class T>
void join_sinks(const Exec& exec, const ForwardArrays<T, Exec>& arrays) {
  const auto& [out, lse, finished, sinks] = arrays;
  check_array("lse", lse, "out", out);
  check_contiguous_rows("out", out);
  check_sinks("sinks", sinks, "out", out);
  if (out.size() == 0) return;
  if (finished.data() == nullptr) return join_into(exec, arrays, out);
  check_array("finished", finished, "out", out);
  join_into(exec, arrays, finished);
}

template <class Exec, class T>
void sink_gradients(const Exec& exec, const SinkGradientArrays<T, Exec>& arrays) {
  check_array("d", arrays.d, "lse", arrays.lse);
  check_sinks("sinks", arrays.sinks, "lse", arrays.lse);
  check_sinks("d_sinks", arrays.d_sinks, "lse", arrays.lse);
  const auto rows = static_cast<std::int64_t>(arrays.lse.extent(2));
  const int sequences = arrays.lse.extent_int(0), heads = arrays.lse.extent_int(1);
  if (heads == 0) return;
  // Four rows at once, whose loads do not wait for one another. A team of one size sums in one order; a
  // device has registers for this one, whatever the compiler makes of the loop.
  constexpr int at_once = 4, threads = detail::host_memory<Exec> ? 1 : 256;
  Kokkos::parallel_for(
      "annulus::attention::sink_gradients", Kokkos::TeamPolicy<Exec>(exec, heads, threads),
      KOKKOS_LAMBDA(const RowMember<Exec>& member) {
        const int h = member.league_rank();
        const auto sink = static_cast<float>(arrays.sinks(h));
        float sum = 0.0f;
        for (int b = 0; b < sequences; ++b) {
          float of_sequence = 0.0f;
          Kokkos::parallel_reduce(
              Kokkos::TeamThreadRange(member, ceil_divide<std::int64_t>(rows, at_once)),
              [&](std::int64_t group, float& partial) {
                float share[at_once];
                for (int e = 0; e < at_once; ++e) {
                  const std::int64_t i = group * at_once + e;
                  share[e] = i < rows ? Kokkos::exp(sink - arrays.lse(b, h, i)) * arrays.d(b, h, i) : 0.0f;
                }
                partial += (share[0] + share[1]) + (share[2] + share[3]);
              },
              of_sequence);
          sum += of_sequence;
        }
        Kokkos::single(Kokkos::PerTeam(member), [&] { arrays.d_sinks(h) -= sum; });
      });
}

template <class Exec, class T>
void convert(const Exec& exec, const Strided4<const float, Exec>& from, const Strided4<T, Exec>& to) {
  check_array("to", to, "from", from);
  check_contiguous_rows("from", from);
  if (from.size() == 0) return;
  // Four elements a lane: a warp then covers a row of 128.
  constexpr int width = detail::host_memory<Exec> ? 8 : 4;
  if (rows_in_packs(from, width) && rows_in_packs(to, width)) {
    convert_packs<width>(exec, from, to);
  } else {
    convert_packs<1>(exec, from, to);
  }
}

template <class Exec, class T, class Out>
void row_dot(const Exec& exec, const Strided4<const std::type_identity_t<Out>, Exec>& out,
             const Strided4<const T, Exec>& d_out, const Strided3<float, Exec>& d) {
  check_array("d_out", d_out, "out", out);
  check_array("d", d, "out", out);
  check_contiguous_rows("out", out);
  constexpr int pack = 4;  // a warp reads a row of 128 columns at once
  if (!detail::host_memory<Exec> && rows_in_packs(out, pack) && rows_in_packs(d_out, pack)) {
    sum_products<pack, Exec, T, Out>(exec, out, d_out, d);
  } else {
    sum_products<1, Exec, T, Out>(exec, out, d_out, d);
  }
}

ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_COMPILE_FUNCTION, start_forward)
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_COMPILE_FUNCTION, merge)
ANNULUS_FOR_ATTENTION(ANNULUS_COMPILE_TYPED_FUNCTION, convert)
ANNULUS_FOR_ATTENTION(ANNULUS_COMPILE_TYPED_FUNCTION, join_sinks)
ANNULUS_FOR_ATTENTION(ANNULUS_COMPILE_TYPED_FUNCTION, sink_gradients)

#define ANNULUS_ATTENTION_ROW_DOT(Exec, T, Out) \
  template decltype(row_dot<Exec, T, Out>) row_dot<Exec, T, Out>;
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_ATTENTION_ROW_DOT, float, float)
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_ATTENTION_ROW_DOT, bfloat16, float)
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_ATTENTION_ROW_DOT, bfloat16, bfloat16)
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_ATTENTION_ROW_DOT, float16, float)
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_ATTENTION_ROW_DOT, float16, float16)

}  // namespace annulus::attention
