#include <annulus/base/division.hpp>

#include "base/kokkos/instantiate.hpp"
#include "training/model/ops.hpp"
#include "training/model/ops/rows.hpp"

namespace annulus::model {

namespace {

// A thread keeps its first packs of a row in registers; it reads the rest again, from the cache. `onto`: the
// residual is added.
template <int width, bool onto, class Exec, class T>
void rms_norm_packs(const Exec& exec, const Array2<const T, Exec>& x, const NormGain<Exec, T>& gain,
                    float epsilon, const Array2<const T, Exec>& residual, const Array2<T, Exec>& out,
                    const Array1<float, Exec>& inverse_rms) {
  const int hidden = x.extent_int(1);
  // As many registers as let SMs be full: while one team adds up, the others load. The gains are
  // in a cache by the time they are needed.
  using Policy = Kokkos::TeamPolicy<Exec, Kokkos::LaunchBounds<most_threads_of_row, 4>>;
  Kokkos::parallel_for(
      "annulus::model::rms_norm", Policy(exec, x.extent_int(0), threads_of_row<Exec>(hidden / width)),
      KOKKOS_LAMBDA(const typename Policy::member_type& team) {
        const std::int64_t t = team.league_rank();
        const int first = team.team_rank() * width, step = team.team_size() * width;
        Held<width, T> held[held_packs] = {};
        for (int k = 0; k < held_packs; ++k)
          if (const int c = first + k * step; c < hidden) held[k] = hold<width>(&x(t, c));
        Pack<width> squares = {};
        const auto add = [&](const Pack<width>& values) {
          for (int i = 0; i < width; ++i) squares[i] += values[i] * values[i];
        };
        for (int k = 0; k < held_packs; ++k)
          if (first + k * step < hidden) add(held[k].values());
        for (int c = first + held_packs * step; c < hidden; c += step) add(load<width>(&x(t, c)));
        float sum = squares.sum();
        team.team_reduce(Kokkos::Sum<float>(sum));
        const float r = 1.0f / Kokkos::sqrt(sum / static_cast<float>(hidden) + epsilon);
        if (first == 0) inverse_rms(t) = r;
        const auto write = [&](const int c, const Pack<width>& values, const Pack<width>& by) {
          Pack<width> normed;
          for (int i = 0; i < width; ++i) normed[i] = values[i] * r * by[i];
          if (onto) {
            const auto before = load<width>(&residual(t, c));
            for (int i = 0; i < width; ++i) normed[i] += before[i];
          }
          store(&out(t, c), normed);
        };
        for (int k = 0; k < held_packs; ++k)
          if (const int c = first + k * step; c < hidden)
            write(c, held[k].values(), load_gain<width>(gain, c));
        for (int c = first + held_packs * step; c < hidden; c += step)
          write(c, load<width>(&x(t, c)), load_gain<width>(gain, c));
      });
}

template <int width, class Exec, class T>
void rms_norm_recompute_packs(const Exec& exec, const Array2<const T, Exec>& x, const NormGain<Exec, T>& gain,
                              const Array1<const float, Exec>& inverse_rms, const Array2<T, Exec>& out) {
  for_each_pack<width>(
      "annulus::model::rms_norm_recompute", exec, x.extent_int(0), x.extent_int(1),
      KOKKOS_LAMBDA(const std::int64_t t, const int c) {
        const auto values = load<width>(&x(t, c)), gains = load_gain<width>(gain, c);
        const float r = inverse_rms(t);
        Pack<width> normed;
        for (int i = 0; i < width; ++i) normed[i] = values[i] * r * gains[i];
        store(&out(t, c), normed);
      });
}

// With x̂ = x·r and g = d_out∘gain: d_x = r·(g − x̂·mean(g∘x̂)), d_gain = Σ_t d_out∘x̂. A team keeps its sums for
// d_gain in scratch memory, every thread those of its own columns.
template <int width, class Exec, class T>
void rms_norm_backward_packs(const Exec& exec, const Array2<const T, Exec>& x, const NormGain<Exec, T>& gain,
                             const Array1<const float, Exec>& inverse_rms, const Array2<const T, Exec>& d_out,
                             const NormGradients<Exec, T>& gradients) {
  const Array2<T, Exec> d_x = gradients.d_x;
  const bool fresh = gradients.fresh_d_x;
  const Array2<float, Exec> partial = gradients.partial;
  using Scratch = Kokkos::View<Pack<width>*, typename Exec::scratch_memory_space, Kokkos::MemoryUnmanaged>;
  const int rows = x.extent_int(0), hidden = x.extent_int(1);
  // Level 0 is a device's shared memory; models too wide for it take global memory.
  const int bytes = static_cast<int>(Scratch::shmem_size(static_cast<std::size_t>(hidden / width)));
  const int level = bytes <= 96 * 1024 ? 0 : 1;
  // Registers for two teams on an SM: while one adds up, the other one loads.
  using Policy = Kokkos::TeamPolicy<Exec, Kokkos::LaunchBounds<most_threads_of_row, 2>>;
  Kokkos::parallel_for(
      "annulus::model::rms_norm_backward",
      Policy(exec, static_cast<int>(norm_partial_rows(rows)), threads_of_row<Exec>(hidden / width))
          .set_scratch_size(level, Kokkos::PerTeam(bytes)),
      KOKKOS_LAMBDA(const typename Policy::member_type& team) {
        const Scratch sums(team.team_scratch(level), static_cast<std::size_t>(hidden / width));
        const std::int64_t block = team.league_rank(), begin = block * rows_per_partial,
                           end = Kokkos::min<std::int64_t>(rows, begin + rows_per_partial);
        const int first = team.team_rank() * width, step = team.team_size() * width;
        for (std::int64_t t = begin; t < end; ++t) {
          Held<width, T> xs[held_packs] = {}, ds[held_packs] = {}, before[held_packs] = {};
          for (int k = 0; k < held_packs; ++k)
            if (const int c = first + k * step; c < hidden) {
              xs[k] = hold<width>(&x(t, c));
              ds[k] = hold<width>(&d_out(t, c));
              if (!fresh) before[k] = hold<width>(&d_x(t, c));
            }
          const float r = inverse_rms(t);
          Pack<width> products = {};
          const auto add = [&](const int c, const Pack<width>& values, const Pack<width>& d) {
            const auto gains = load_gain<width>(gain, c);
            auto sum = t == begin ? Pack<width>{} : sums(c / width);
            for (int i = 0; i < width; ++i) {
              const float d_gain = d[i] * values[i] * r;
              sum[i] += d_gain;
              products[i] += d_gain * gains[i];
            }
            sums(c / width) = sum;
          };
          for (int k = 0; k < held_packs; ++k)
            if (const int c = first + k * step; c < hidden) add(c, xs[k].values(), ds[k].values());
          for (int c = first + held_packs * step; c < hidden; c += step)
            add(c, load<width>(&x(t, c)), load<width>(&d_out(t, c)));
          float dot = products.sum();
          team.team_reduce(Kokkos::Sum<float>(dot));
          const float mean = dot / static_cast<float>(hidden);
          const auto write = [&](const int c, const Pack<width>& values, const Pack<width>& d,
                                 Pack<width> total) {
            const auto gains = load_gain<width>(gain, c);
            for (int i = 0; i < width; ++i) total[i] += r * (d[i] * gains[i] - values[i] * r * mean);
            store(&d_x(t, c), total);
          };
          for (int k = 0; k < held_packs; ++k)
            if (const int c = first + k * step; c < hidden)
              write(c, xs[k].values(), ds[k].values(), before[k].values());
          for (int c = first + held_packs * step; c < hidden; c += step)
            write(c, load<width>(&x(t, c)), load<width>(&d_out(t, c)),
                  fresh ? Pack<width>{} : load<width>(&d_x(t, c)));
        }
        for (int c = first; c < hidden; c += step) store(&partial(block, c), sums(c / width));
      });
}

template <int width, class Exec, class T>
void fill_rows_packs(const Exec& exec, const Array1<const T, Exec>& bias, const Array2<T, Exec>& out) {
  for_each_pack<width>(
      "annulus::model::fill_rows", exec, out.extent_int(0), out.extent_int(1),
      KOKKOS_LAMBDA(const std::int64_t t, const int c) { store(&out(t, c), load<width>(&bias(c))); });
}

template <int width, class Exec, class T>
void add_to_rows_packs(const Exec& exec, const Array1<const T, Exec>& bias, const Array2<const T, Exec>& x,
                       const Array2<T, Exec>& out) {
  for_each_pack<width>(
      "annulus::model::add_to_rows", exec, out.extent_int(0), out.extent_int(1),
      KOKKOS_LAMBDA(const std::int64_t t, const int c) {
        auto sum = load<width>(&x(t, c));
        const auto more = load<width>(&bias(c));
        for (int i = 0; i < width; ++i) sum[i] += more[i];
        store(&out(t, c), sum);
      });
}

template <int width, class Exec, class T>
void column_sums_packs(const Exec& exec, const Array2<const T, Exec>& x, const Array2<float, Exec>& partial) {
  const int rows = x.extent_int(0);
  for_each_pack<width>(
      "annulus::model::column_sums", exec, static_cast<int>(norm_partial_rows(rows)), x.extent_int(1),
      KOKKOS_LAMBDA(const std::int64_t block, const int c) {
        const std::int64_t begin = block * rows_per_partial,
                           end = Kokkos::min<std::int64_t>(rows, begin + rows_per_partial);
        Pack<width> sum = {};
        for (std::int64_t t = begin; t < end; ++t) {
          const auto values = load<width>(&x(t, c));
          for (int i = 0; i < width; ++i) sum[i] += values[i];
        }
        store(&partial(block, c), sum);
      });
}

}  // namespace

std::int64_t norm_partial_rows(std::int64_t tokens) {
  return ceil_divide(tokens, rows_per_partial);
}

template <class Exec, class T>
void add_column_sums(const Exec& exec, const Array2<const T, Exec>& x, const Array1<float, Exec>& sum,
                     const Array2<float, Exec>& partial) {
  with_pack_width<Exec, T>(in_packs<Exec, T>(x.extent(1), x, partial),
                           [&](auto width) { column_sums_packs<decltype(width)::value>(exec, x, partial); });
  add_partial<Exec>(exec, partial, static_cast<int>(norm_partial_rows(x.extent_int(0))), sum);
}

template <class Exec, class T>
void fill_rows(const Exec& exec, const Array1<const T, Exec>& bias, const Array2<T, Exec>& out) {
  with_pack_width<Exec, T>(in_packs<Exec, T>(out.extent(1), bias, out),
                           [&](auto width) { fill_rows_packs<decltype(width)::value>(exec, bias, out); });
}

template <class Exec, class T>
void add_to_rows(const Exec& exec, const Array1<const T, Exec>& bias, const Array2<const T, Exec>& x,
                 const Array2<T, Exec>& out) {
  with_pack_width<Exec, T>(in_packs<Exec, T>(out.extent(1), bias, x, out), [&](auto width) {
    add_to_rows_packs<decltype(width)::value>(exec, bias, x, out);
  });
}

template <class Exec, class T>
void rms_norm(const Exec& exec, const Array2<const T, Exec>& x, const NormGain<Exec, T>& gain, float epsilon,
              const Array2<T, Exec>& out, const Array1<float, Exec>& inverse_rms) {
  with_pack_width<Exec, T>(in_packs<Exec, T>(x.extent(1), x, gain.weight, out), [&](auto width) {
    rms_norm_packs<decltype(width)::value, false>(exec, x, gain, epsilon, {}, out, inverse_rms);
  });
}

template <class Exec, class T>
void rms_norm_onto(const Exec& exec, const Array2<const T, Exec>& x, const NormGain<Exec, T>& gain,
                   float epsilon, const Array2<const T, Exec>& residual, const Array2<T, Exec>& out,
                   const Array1<float, Exec>& inverse_rms) {
  with_pack_width<Exec, T>(in_packs<Exec, T>(x.extent(1), x, gain.weight, residual, out), [&](auto width) {
    rms_norm_packs<decltype(width)::value, true>(exec, x, gain, epsilon, residual, out, inverse_rms);
  });
}

template <class Exec, class T>
void rms_norm_recompute(const Exec& exec, const Array2<const T, Exec>& x, const NormGain<Exec, T>& gain,
                        const Array1<const float, Exec>& inverse_rms, const Array2<T, Exec>& out) {
  with_pack_width<Exec, T>(in_packs<Exec, T>(x.extent(1), x, gain.weight, out), [&](auto width) {
    rms_norm_recompute_packs<decltype(width)::value>(exec, x, gain, inverse_rms, out);
  });
}

template <class Exec, class T>
void rms_norm_backward(const Exec& exec, const Array2<const T, Exec>& x, const NormGain<Exec, T>& gain,
                       const Array1<const float, Exec>& inverse_rms, const Array2<const T, Exec>& d_out,
                       const NormGradients<Exec, T>& gradients) {
  const auto& [d_x, d_gain, partial, fresh] = gradients;
  with_pack_width<Exec, T>(
      in_packs<Exec, T>(x.extent(1), x, gain.weight, d_out, d_x, partial), [&](auto width) {
        rms_norm_backward_packs<decltype(width)::value>(exec, x, gain, inverse_rms, d_out, gradients);
      });
  add_partial<Exec>(exec, partial, static_cast<int>(norm_partial_rows(x.extent_int(0))), d_gain);
}

ANNULUS_FOR_TRAINING(ANNULUS_COMPILE_TYPED_FUNCTION, fill_rows)
ANNULUS_FOR_TRAINING(ANNULUS_COMPILE_TYPED_FUNCTION, add_to_rows)
ANNULUS_FOR_TRAINING(ANNULUS_COMPILE_TYPED_FUNCTION, add_column_sums)
ANNULUS_FOR_TRAINING(ANNULUS_COMPILE_TYPED_FUNCTION, rms_norm)
ANNULUS_FOR_TRAINING(ANNULUS_COMPILE_TYPED_FUNCTION, rms_norm_onto)
ANNULUS_FOR_TRAINING(ANNULUS_COMPILE_TYPED_FUNCTION, rms_norm_recompute)
ANNULUS_FOR_TRAINING(ANNULUS_COMPILE_TYPED_FUNCTION, rms_norm_backward)

}  // namespace annulus::model
