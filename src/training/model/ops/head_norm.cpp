#include "base/kokkos/instantiate.hpp"
#include "training/model/layers/joint_heads.hpp"
#include "training/model/ops.hpp"
#include "training/model/ops/rows.hpp"

namespace annulus::model {

namespace {

template <class Exec>
using Team = Kokkos::TeamPolicy<Exec>;

// Vector lanes that share a head of which each takes packs: fixed for a shape, hence a fixed order of sums.
template <class Exec>
int lanes_of_head(int packs) {
  int lanes = 1;
  if constexpr (!detail::host_memory<Exec>)
    while (lanes < 32 && lanes < packs) lanes *= 2;
  return lanes;
}

// body(team, item) for every item, on the lanes of one thread of a team each; a thread has `scratch` bytes.
template <class Exec, class Body>
void for_each_head(const std::string& label, const Exec& exec, int items, int lanes, int scratch,
                   const Body& body) {
  constexpr bool host = detail::host_memory<Exec>;
  // A thread can ask for its scratch memory once.
  const int threads = host ? 1 : 256 / lanes, items_of_team = host && scratch == 0 ? 8 : threads;
  Kokkos::parallel_for(
      label,
      Team<Exec>(exec, ceil_divide(items, items_of_team), threads, lanes)
          .set_scratch_size(0, Kokkos::PerThread(scratch)),
      KOKKOS_LAMBDA(const typename Team<Exec>::member_type& team) {
        const int begin = team.league_rank() * items_of_team, end = Kokkos::min(items, begin + items_of_team);
        Kokkos::parallel_for(Kokkos::TeamThreadRange(team, begin, end),
                             [&](const int item) { body(team, item); });
      });
}

// Sums over a head, or over all of q or k, of x and of the gradient g of x̂ = x·r.
struct HeadSums {
  float squares = 0.0f;  // Σ x²
  float dot = 0.0f;      // Σ g·x
  KOKKOS_FORCEINLINE_FUNCTION HeadSums& operator+=(const HeadSums& other) {
    squares += other.squares;
    dot += other.dot;
    return *this;
  }
};

// Where the gains of a norm lie, and of how many elements it is.
struct GainPlace {
  int head_dim, heads, kv_heads;
  bool joint;
  KOKKOS_FORCEINLINE_FUNCTION int elements(int which) const {
    return joint ? (which == 0 ? heads : kv_heads) * head_dim : head_dim;
  }
  /// The first gain of a head of q or k.
  KOKKOS_FORCEINLINE_FUNCTION int first(int which, int head) const {
    return which * elements(0) + (joint ? head * head_dim : 0);
  }
};

// HeadSums over all heads of q and of k, of every row: squares in row_sums(row, 0 | 1), dots, where there are
// gradients, in row_sums(row, 2 | 3).
template <int width, class Exec, class T>
void joint_sums_packs(const Exec& exec, const Array2<const T, Exec>& qkv, const HeadNorm<Exec, T>& norm,
                      const RopeTable<Exec>& table, const HeadArrays<Exec, const float>& gradients, int heads,
                      int kv_heads, int first_row) {
  const Array2<const float, Exec> cosine = table.cosine, sine = table.sine;
  const Array4<const float, Exec> dq = gradients.q, dk = gradients.k;
  const NormGain<Exec, T> gain = norm.gain;
  const Array2<float, Exec> sums = norm.row_sums;
  const bool with_gradients = dq.data() != nullptr;
  const HeadPairs pairs = head_pairs(qkv.extent_int(1), heads + 2 * kv_heads, table);
  const int half = pairs.half, tokens = table.tokens(), stride = table.stride(), in_row = dq.extent_int(3),
            packs = half / width;
  const GainPlace gains{2 * half, heads, kv_heads, true};
  for_each_head(
      "annulus::model::joint_norm_sums", exec, qkv.extent_int(0) * 2, lanes_of_head<Exec>(packs * kv_heads),
      0, KOKKOS_LAMBDA(const typename Team<Exec>::member_type& team, const int item) {
        const int number = item / 2, which = item - number * 2;
        const std::int64_t row = number;
        const TokenRow at(first_row + number, tokens);
        const std::int64_t angles = at.sequence * stride + at.token;  // row of the table
        HeadSums all;
        Kokkos::parallel_reduce(
            Kokkos::ThreadVectorRange(team, packs * (which == 0 ? heads : kv_heads)),
            [&](const int pack, HeadSums& sum) {
              const int head = pack / packs, i = (pack - head * packs) * width;
              const QkvColumn place(((which == 0 ? 0 : heads) + head) * half + i, half, in_row, heads,
                                    kv_heads);
              const int elements[2] = {pairs.first(i), pairs.second(i)};
              Pack<width> ds[2] = {};
              if (with_gradients) {
                const float* const d = place.in(dq.data(), dk.data(), dk.data(), at, tokens);
                ds[0] = load<width>(d + elements[0]), ds[1] = load<width>(d + elements[1]);
                if (pairs.turns(i))
                  rotate_back(ds[0], ds[1], load<width>(&cosine(angles, i)), load<width>(&sine(angles, i)));
              }
              for (int part = 0; part < 2; ++part) {
                const auto x = load<width>(&qkv(row, place.column + elements[part])),
                           by = load_gain<width>(gain, gains.first(which, head) + elements[part]);
                for (int j = 0; j < width; ++j) {
                  sum.squares += x[j] * x[j];
                  sum.dot += ds[part][j] * by[j] * x[j];
                }
              }
            },
            all);
        Kokkos::single(Kokkos::PerThread(team), [&] {
          sums(row, which) = all.squares;
          sums(row, 2 + which) = all.dot;
        });
      });
}

template <int width, class Exec, class T>
void split_packs(const Exec& exec, const Array2<const T, Exec>& qkv, const HeadNorm<Exec, T>& norm,
                 const RopeTable<Exec>& table, const HeadArrays<Exec, T>& by_head, int first_row) {
  const Array2<const float, Exec> cosine = table.cosine, sine = table.sine;
  const NormGain<Exec, T> gain = norm.gain;
  const Array2<const float, Exec> joint_sums = norm.row_sums;
  const float epsilon = norm.epsilon;
  const Array4<T, Exec> q = by_head.q, k = by_head.k, v = by_head.v;
  const int heads = q.extent_int(1), kv_heads = k.extent_int(1), joint = heads + 2 * kv_heads;
  const HeadPairs pairs = head_pairs(qkv.extent_int(1), joint, table);
  const int half = pairs.half, tokens = q.extent_int(2), in_row = q.extent_int(3), packs = half / width,
            stride = table.stride();
  const GainPlace gains{2 * half, heads, kv_heads, norm.joint};
  for_each_head(
      "annulus::model::split_qkv_norm_rope", exec, qkv.extent_int(0) * joint, lanes_of_head<Exec>(packs), 0,
      KOKKOS_LAMBDA(const typename Team<Exec>::member_type& team, const int item) {
        const int number = item / joint;
        const std::int64_t row = number;
        const TokenRow at(first_row + number, tokens);
        const std::int64_t angles = at.sequence * stride + at.token;  // row of the table
        const QkvColumn place((item - number * joint) * half, half, in_row, heads, kv_heads);
        const auto values = [&](const int i) { return load<width>(&qkv(row, place.column + i)); };
        float squares = 0.0f;
        if (place.which < 2 && gains.joint)
          squares = joint_sums(row, place.which);
        else if (place.which < 2)
          Kokkos::parallel_reduce(
              Kokkos::ThreadVectorRange(team, packs),
              [&](const int pack, float& sum) {
                const auto first = values(pairs.first(pack * width)),
                           second = values(pairs.second(pack * width));
                for (int j = 0; j < width; ++j) sum += first[j] * first[j] + second[j] * second[j];
              },
              squares);
        const float r =
            1.0f / Kokkos::sqrt(squares / static_cast<float>(gains.elements(place.which)) + epsilon);
        const int first_gain = gains.first(place.which, place.head);
        T* const out = place.in(q.data(), k.data(), v.data(), at, tokens);
        Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, packs), [&](const int pack) {
          const int i = pack * width, first_element = pairs.first(i), second_element = pairs.second(i);
          auto first = values(first_element), second = values(second_element);
          if (place.which < 2) {
            const auto by = load_gain<width>(gain, first_gain + first_element),
                       by_second = load_gain<width>(gain, first_gain + second_element);
            for (int j = 0; j < width; ++j) {
              first[j] *= r * by[j];
              second[j] *= r * by_second[j];
            }
            if (pairs.turns(i))
              rotate(first, second, load<width>(&cosine(angles, i)), load<width>(&sine(angles, i)));
          }
          store<Caching::pass>(out + first_element, first);
          store<Caching::pass>(out + second_element, second);
        });
      });
}

// d_x = r·(g − x̂·mean(g∘x̂)) as in rms_norm_backward, with the gradient turned back first. A thread takes a
// head of a block of rows and sums d∘x̂ over them in scratch memory, every lane its own columns. The sums lie
// in `partial` as (blocks, heads, head_dim) of q and (blocks, kv_heads, head_dim) of k behind it.
template <int width, class Exec, class T>
void backward_packs(const Exec& exec, const HeadArrays<Exec, const float>& gradients,
                    const HeadNorm<Exec, T>& norm, const RopeTable<Exec>& table,
                    const HeadNormGradients<Exec, T>& results, int first_row) {
  const Array4<const float, Exec> dq = gradients.q, dk = gradients.k, dv = gradients.v;
  const Array2<const float, Exec> cosine = table.cosine, sine = table.sine;
  const NormGain<Exec, T> gain = norm.gain;
  const Array2<const float, Exec> joint_sums = norm.row_sums;
  const float epsilon = norm.epsilon;
  const Array2<T, Exec> d_qkv = results.d_qkv;
  float* const partial = results.partial.data();
  const int heads = dq.extent_int(1), kv_heads = dk.extent_int(1), joint = heads + 2 * kv_heads;
  const HeadPairs pairs = head_pairs(d_qkv.extent_int(1), joint, table);
  const int half = pairs.half, tokens = dq.extent_int(2), in_row = dq.extent_int(3), packs = half / width,
            stride = table.stride();
  const int rows = d_qkv.extent_int(0), blocks = static_cast<int>(norm_partial_rows(rows));
  using Scratch = Kokkos::View<Pack<width>*, typename Exec::scratch_memory_space, Kokkos::MemoryUnmanaged>;
  const auto of_head = static_cast<std::size_t>(2 * packs);
  const GainPlace gains{2 * half, heads, kv_heads, norm.joint};
  for_each_head(
      "annulus::model::split_qkv_norm_rope_backward", exec, blocks * joint, lanes_of_head<Exec>(packs),
      static_cast<int>(Scratch::shmem_size(of_head)),
      KOKKOS_LAMBDA(const typename Team<Exec>::member_type& team, const int item) {
        const int block = item / joint;
        const QkvColumn place((item - block * joint) * half, half, in_row, heads, kv_heads);
        const bool normed = place.which < 2;
        const int first_gain = gains.first(place.which, place.head);
        const Scratch sums(team.thread_scratch(0), of_head);
        const int begin = block * rows_per_partial, end = Kokkos::min(rows, begin + rows_per_partial);
        for (std::int64_t row = begin; row < end; ++row) {
          const TokenRow at(static_cast<int>(first_row + row), tokens);
          const std::int64_t angles = at.sequence * stride + at.token;  // row of the table
          const float* const d = place.in(dq.data(), dk.data(), dv.data(), at, tokens);
          T* const x = &d_qkv(row, place.column);
          // Of a pair: the gradient behind the norm, and what went into the norm.
          const auto load_both = [&](const int i, const int(&elements)[2], Pack<width>(&ds)[2],
                                     Pack<width>(&xs)[2]) {
            ds[0] = load<width>(d + elements[0]), ds[1] = load<width>(d + elements[1]);
            if (!normed) return;
            if (pairs.turns(i))
              rotate_back(ds[0], ds[1], load<width>(&cosine(angles, i)), load<width>(&sine(angles, i)));
            xs[0] = load<width>(x + elements[0]), xs[1] = load<width>(x + elements[1]);
          };
          HeadSums all;
          if (normed && gains.joint)
            all = {joint_sums(row, place.which), joint_sums(row, 2 + place.which)};
          else if (normed)
            Kokkos::parallel_reduce(
                Kokkos::ThreadVectorRange(team, packs),
                [&](const int pack, HeadSums& sum) {
                  const int i = pack * width, elements[2] = {pairs.first(i), pairs.second(i)};
                  Pack<width> ds[2], xs[2];
                  load_both(i, elements, ds, xs);
                  for (int part = 0; part < 2; ++part) {
                    const auto by = load_gain<width>(gain, first_gain + elements[part]);
                    for (int j = 0; j < width; ++j) {
                      sum.squares += xs[part][j] * xs[part][j];
                      sum.dot += ds[part][j] * by[j] * xs[part][j];
                    }
                  }
                },
                all);
          const float n = static_cast<float>(gains.elements(place.which));
          const float r = 1.0f / Kokkos::sqrt(all.squares / n + epsilon), mean = all.dot * r / n;
          Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, packs), [&](const int pack) {
            const int i = pack * width, elements[2] = {pairs.first(i), pairs.second(i)};
            Pack<width> ds[2], xs[2];
            load_both(i, elements, ds, xs);
            for (int part = 0; part < 2; ++part) {
              if (normed) {
                const auto by = load_gain<width>(gain, first_gain + elements[part]);
                auto sum = row == begin ? Pack<width>{} : sums(2 * pack + part);
                for (int j = 0; j < width; ++j) {
                  const float unit = xs[part][j] * r, before = ds[part][j];
                  sum[j] += before * unit;
                  ds[part][j] = r * (before * by[j] - unit * mean);
                }
                sums(2 * pack + part) = sum;
              }
              store(x + elements[part], ds[part]);
            }
          });
        }
        if (!normed) return;
        const std::int64_t sum_row =
            place.which == 0 ? std::int64_t{block} * heads + place.head
                             : std::int64_t{blocks} * heads + std::int64_t{block} * kv_heads + place.head;
        float* const out = partial + sum_row * 2 * half;
        Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, packs), [&](const int pack) {
          store(out + pairs.first(pack * width), sums(2 * pack));
          store(out + pairs.second(pack * width), sums(2 * pack + 1));
        });
      });
}

}  // namespace

template <class Exec, class T>
void split_qkv_norm_rope(const Exec& exec, const Array2<const T, Exec>& qkv, const HeadNorm<Exec, T>& norm,
                         const RopeTable<Exec>& table, const HeadArrays<Exec, T>& heads,
                         std::int64_t first_row) {
  const auto& [q, k, v] = heads;
  const int step = head_pairs(qkv.extent_int(1), q.extent_int(1) + 2 * k.extent_int(1), table).step();
  with_pack_width<Exec, T>(
      in_packs<Exec, T>(step, qkv, norm.gain.weight, table.cosine, table.sine, q, k, v), [&](auto width) {
        if (norm.joint)
          joint_sums_packs<decltype(width)::value>(exec, qkv, norm, table, {}, q.extent_int(1),
                                                   k.extent_int(1), static_cast<int>(first_row));
        split_packs<decltype(width)::value>(exec, qkv, norm, table, heads, static_cast<int>(first_row));
      });
}

template <class Exec, class T>
void split_qkv_norm_rope_backward(const Exec& exec, const HeadArrays<Exec, const float>& gradients,
                                  const HeadNorm<Exec, T>& norm, const RopeTable<Exec>& table,
                                  const HeadNormGradients<Exec, T>& results, std::int64_t first_row) {
  const auto& [dq, dk, dv] = gradients;
  const auto& [d_qkv, d_gain, partial] = results;
  const HeadPairs pairs = head_pairs(d_qkv.extent_int(1), dq.extent_int(1) + 2 * dk.extent_int(1), table);
  with_pack_width<Exec, T>(
      in_packs<Exec, T>(pairs.step(), dq, dk, dv, norm.gain.weight, table.cosine, table.sine, d_qkv, partial),
      [&](auto width) {
        if (norm.joint)
          joint_sums_packs<decltype(width)::value>(exec, Array2<const T, Exec>(d_qkv), norm, table, gradients,
                                                   dq.extent_int(1), dk.extent_int(1),
                                                   static_cast<int>(first_row));
        backward_packs<decltype(width)::value>(exec, gradients, norm, table, results,
                                               static_cast<int>(first_row));
      });
  const int blocks = static_cast<int>(norm_partial_rows(d_qkv.extent_int(0))), head_dim = 2 * pairs.half;
  const float* sums = partial.data();
  float* gains = d_gain.data();
  for (const Array4<const float, Exec>& of : {dq, dk}) {
    const int heads = of.extent_int(1), rows = norm.joint ? blocks : blocks * heads,
              width = norm.joint ? heads * head_dim : head_dim;
    add_partial<Exec>(exec, Array2<const float, Exec>(sums, rows, width), rows,
                      Array1<float, Exec>(gains, width));
    sums += std::int64_t{rows} * width;
    gains += width;
  }
}

ANNULUS_FOR_TRAINING(ANNULUS_COMPILE_TYPED_FUNCTION, split_qkv_norm_rope)
ANNULUS_FOR_TRAINING(ANNULUS_COMPILE_TYPED_FUNCTION, split_qkv_norm_rope_backward)

}  // namespace annulus::model
