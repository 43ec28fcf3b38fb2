#include <cstdint>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/queue.hpp>

#include "base/kokkos/instantiate.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "training/model/layers/joint_heads.hpp"
#include "training/model/ops.hpp"
#include "training/model/ops/rows.hpp"

namespace annulus::model {

template <class Exec>
void rope_table(const Exec& exec, const Array1<const std::int32_t, Exec>& positions,
                const Array1<const float, Exec>& inverse, double attention_factor,
                const Array2<float, Exec>& cosine, const Array2<float, Exec>& sine) {
  using Policy = Kokkos::MDRangePolicy<Exec, Kokkos::Rank<2>>;
  const int half = cosine.extent_int(1);
  require(inverse.extent_int(0) == half, "rope_table got {} frequencies for {} columns",
          inverse.extent_int(0), half);
  Kokkos::parallel_for(
      "annulus::model::rope_table", Policy(exec, {0, 0}, {cosine.extent_int(0), half}),
      KOKKOS_LAMBDA(const std::int64_t t, const int i) {
        const double angle = static_cast<double>(positions(t)) * static_cast<double>(inverse(i));
        cosine(t, i) = static_cast<float>(Kokkos::cos(angle) * attention_factor);
        sine(t, i) = static_cast<float>(Kokkos::sin(angle) * attention_factor);
      });
}

template <class Exec>
void rope_table(const Exec& exec, const PositionMap& positions, const RopeFrequencies& frequencies,
                const Array2<float, Exec>& cosine, const Array2<float, Exec>& sine) {
  const auto upload = [&]<class E>(const std::vector<E>& values, const char* label) {
    auto owned = Owned<Array1<E, Exec>>::uninitialized(exec, MemoryCategory::workspace, label,
                                                       static_cast<std::int64_t>(values.size()));
    Queue(exec).copy_from_host((*owned).data(), values.data(), values.size() * sizeof(E));
    return owned;
  };
  std::vector<std::int32_t> list(static_cast<std::size_t>(positions.count));
  positions.list(list.data());
  const auto inverse = upload(frequencies.inverse, "annulus::model::rope_frequencies");
  const auto of_rows = upload(list, "annulus::model::rope_positions");
  rope_table(exec, Array1<const std::int32_t, Exec>(*of_rows), Array1<const float, Exec>(*inverse),
             frequencies.attention_factor, cosine, sine);
  exec.fence("annulus::model::rope_table: the lists on the host may go away");
}

namespace {

template <int width, class Exec, class T>
void split_qkv_rope_packs(const Exec& exec, const Array2<const T, Exec>& qkv, const RopeTable<Exec>& table,
                          const HeadArrays<Exec, T>& by_head, int first_row) {
  const Array2<const float, Exec> cosine = table.cosine, sine = table.sine;
  const Array4<T, Exec> q = by_head.q, k = by_head.k, v = by_head.v;
  const int heads = q.extent_int(1), kv_heads = k.extent_int(1), joint = heads + 2 * kv_heads,
            tokens = q.extent_int(2), in_row = q.extent_int(3), stride = table.stride();
  const HeadPairs pairs = head_pairs(qkv.extent_int(1), joint, table);
  for_each_pack<width>(
      "annulus::model::split_qkv_rope", exec, qkv.extent_int(0), joint * pairs.half,
      KOKKOS_LAMBDA(const std::int64_t row, const int pair) {
        const TokenRow at(static_cast<int>(first_row + row), tokens);
        const QkvColumn place(pair, pairs.half, in_row, heads, kv_heads);
        const int first_element = pairs.first(place.i), second_element = pairs.second(place.i);
        auto first = load<width>(&qkv(row, place.column + first_element)),
             second = load<width>(&qkv(row, place.column + second_element));
        if (place.which < 2 && pairs.turns(place.i)) {
          const std::int64_t angles = at.sequence * stride + at.token;
          rotate(first, second, load<width>(&cosine(angles, place.i)), load<width>(&sine(angles, place.i)));
        }
        T* const out = place.in(q.data(), k.data(), v.data(), at, tokens);
        store<Caching::pass>(out + first_element, first);
        store<Caching::pass>(out + second_element, second);
      });
}

template <int width, class Exec, class T>
void split_qkv_rope_backward_packs(const Exec& exec, const HeadArrays<Exec, const float>& gradients,
                                   const RopeTable<Exec>& table, const Array2<T, Exec>& d_qkv,
                                   int first_row) {
  const Array4<const float, Exec> dq = gradients.q, dk = gradients.k, dv = gradients.v;
  const Array2<const float, Exec> cosine = table.cosine, sine = table.sine;
  const int heads = dq.extent_int(1), kv_heads = dk.extent_int(1), joint = heads + 2 * kv_heads,
            tokens = dq.extent_int(2), in_row = dq.extent_int(3), stride = table.stride();
  const HeadPairs pairs = head_pairs(d_qkv.extent_int(1), joint, table);
  for_each_pack<width>(
      "annulus::model::split_qkv_rope_backward", exec, d_qkv.extent_int(0), joint * pairs.half,
      KOKKOS_LAMBDA(const std::int64_t row, const int pair) {
        const TokenRow at(static_cast<int>(first_row + row), tokens);
        const QkvColumn place(pair, pairs.half, in_row, heads, kv_heads);
        const int first_element = pairs.first(place.i), second_element = pairs.second(place.i);
        const float* const in = place.in(dq.data(), dk.data(), dv.data(), at, tokens);
        auto first = load<width>(in + first_element), second = load<width>(in + second_element);
        if (place.which < 2 && pairs.turns(place.i)) {
          const std::int64_t angles = at.sequence * stride + at.token;
          rotate_back(first, second, load<width>(&cosine(angles, place.i)),
                      load<width>(&sine(angles, place.i)));
        }
        store(&d_qkv(row, place.column + first_element), first);
        store(&d_qkv(row, place.column + second_element), second);
      });
}

template <int width, class Exec, class T>
void join_heads_packs(const Exec& exec, const Array4<const float, Exec>& in, const Array2<T, Exec>& out) {
  const int tokens = in.extent_int(2), head_dim = out.extent_int(1) / in.extent_int(1);
  for_each_pack<width>(
      "annulus::model::join_heads", exec, out.extent_int(0), out.extent_int(1),
      KOKKOS_LAMBDA(const std::int64_t row, const int c) {
        const TokenRow at(static_cast<int>(row), tokens);
        store(&out(row, c), load<width>(&in(at.sequence, c / head_dim, at.token, c % head_dim)));
      });
}

template <int width, class Exec, class T>
void split_heads_packs(const Exec& exec, const Array2<const T, Exec>& in, const Array4<T, Exec>& out,
                       int first_row) {
  const int tokens = out.extent_int(2), head_dim = in.extent_int(1) / out.extent_int(1);
  for_each_pack<width>(
      "annulus::model::split_heads", exec, in.extent_int(0), in.extent_int(1),
      KOKKOS_LAMBDA(const std::int64_t row, const int c) {
        const TokenRow at(static_cast<int>(first_row + row), tokens);
        store(&out(at.sequence, c / head_dim, at.token, c % head_dim), load<width>(&in(row, c)));
      });
}

}  // namespace

template <class Exec, class T>
void split_qkv_rope(const Exec& exec, const Array2<const T, Exec>& qkv, const RopeTable<Exec>& table,
                    const HeadArrays<Exec, T>& heads, std::int64_t first_row) {
  const auto& [q, k, v] = heads;
  const int step = head_pairs(qkv.extent_int(1), q.extent_int(1) + 2 * k.extent_int(1), table).step();
  with_pack_width<Exec, T>(in_packs<Exec, T>(step, qkv, table.cosine, table.sine, q, k, v), [&](auto width) {
    split_qkv_rope_packs<decltype(width)::value>(exec, qkv, table, heads, static_cast<int>(first_row));
  });
}

template <class Exec, class T>
void split_qkv_rope_backward(const Exec& exec, const HeadArrays<Exec, const float>& gradients,
                             const RopeTable<Exec>& table, const Array2<T, Exec>& d_qkv,
                             std::int64_t first_row) {
  const auto& [dq, dk, dv] = gradients;
  const int step = head_pairs(d_qkv.extent_int(1), dq.extent_int(1) + 2 * dk.extent_int(1), table).step();
  with_pack_width<Exec, T>(in_packs<Exec, T>(step, dq, dk, dv, table.cosine, table.sine, d_qkv),
                           [&](auto width) {
                             split_qkv_rope_backward_packs<decltype(width)::value>(
                                 exec, gradients, table, d_qkv, static_cast<int>(first_row));
                           });
}

template <class Exec, class T>
void join_heads(const Exec& exec, const Array4<const float, Exec>& in, const Array2<T, Exec>& out) {
  with_pack_width<Exec, T>(in_packs<Exec, T>(out.extent_int(1) / in.extent_int(1), in, out),
                           [&](auto width) { join_heads_packs<decltype(width)::value>(exec, in, out); });
}

template <class Exec, class T>
void split_heads(const Exec& exec, const Array2<const T, Exec>& in, const Array4<T, Exec>& out,
                 std::int64_t first_row) {
  with_pack_width<Exec, T>(in_packs<Exec, T>(in.extent_int(1) / out.extent_int(1), in, out), [&](auto width) {
    split_heads_packs<decltype(width)::value>(exec, in, out, static_cast<int>(first_row));
  });
}

#define ANNULUS_INSTANTIATE_TABLE(Exec)                                                          \
  template void rope_table(const Exec&, const PositionMap&, const RopeFrequencies&,              \
                           const Array2<float, Exec>&, const Array2<float, Exec>&);              \
  template void rope_table(const Exec&, const Array1<const std::int32_t, Exec>&,                 \
                           const Array1<const float, Exec>&, double, const Array2<float, Exec>&, \
                           const Array2<float, Exec>&);
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_INSTANTIATE_TABLE)

ANNULUS_FOR_TRAINING(ANNULUS_COMPILE_TYPED_FUNCTION, split_qkv_rope)
ANNULUS_FOR_TRAINING(ANNULUS_COMPILE_TYPED_FUNCTION, split_qkv_rope_backward)
ANNULUS_FOR_TRAINING(ANNULUS_COMPILE_TYPED_FUNCTION, join_heads)
ANNULUS_FOR_TRAINING(ANNULUS_COMPILE_TYPED_FUNCTION, split_heads)

}  // namespace annulus::model
