#include <annulus/model/ops.hpp>

#include "core/instantiate.hpp"
#include "model/rows.hpp"

namespace annulus::model {

namespace {

// Columns are cut into sections of one pack, or `each`, for every lane of a warp, so that many warps share a
// row.
template <class Exec, int each = 1>
struct Sections {
  int packs;                                           // of a row
  int lanes = detail::host_memory<Exec> ? packs : 32;  // of a section
  int count = (packs + lanes * each - 1) / (lanes * each);
};

template <int width, class Exec, class T>
void embed_packs(const Exec& exec, const Array1<const std::int32_t, Exec>& tokens,
                 const Array2<const T, Exec>& table, const Array2<T, Exec>& out) {
  constexpr int each = detail::host_memory<Exec> ? 1 : 4;  // loads on their way at once
  const Sections<Exec, each> sections{out.extent_int(1) / width};
  for_each_pack<1>(
      "annulus::model::embed", exec, out.extent_int(0) * sections.count, sections.lanes,
      KOKKOS_LAMBDA(const int piece, const int lane) {
        const int t = piece / sections.count, token = tokens(t);
        const int first = (piece % sections.count) * sections.lanes * each + lane;
        Held<width, T> held[each] = {};
        for (int k = 0; k < each; ++k)
          if (const int pack = first + k * sections.lanes; pack < sections.packs)
            held[k] = hold<width>(&table(token, pack * width));
        for (int k = 0; k < each; ++k)
          if (const int pack = first + k * sections.lanes; pack < sections.packs)
            store<Caching::pass>(&out(t, pack * width), held[k]);
      });
}

// `order` is cut into blocks of rows_per_partial. A block adds the sums of the tokens whose rows begin in it
// to the table; the sum of the token whose rows began in an earlier block goes to partial(block, :).
template <int width, class Exec, class T>
void sum_blocks(const Exec& exec, const Array1<const std::int32_t, Exec>& tokens,
                const Array1<const std::int32_t, Exec>& order, const Array2<const T, Exec>& d_out,
                const Array2<float, Exec>& d_table, const Array2<float, Exec>& partial) {
  const int rows = d_out.extent_int(0), blocks = static_cast<int>(norm_partial_rows(rows));
  constexpr int ahead = 4;  // rows on their way at once
  const Sections<Exec> sections{d_out.extent_int(1) / width};
  for_each_pack<1>(
      "annulus::model::embed_backward", exec, blocks * sections.count, sections.lanes,
      KOKKOS_LAMBDA(const int piece, const int lane) {
        const int block = piece / sections.count, pack = (piece % sections.count) * sections.lanes + lane;
        if (pack >= sections.packs) return;
        const int begin = block * rows_per_partial, end = Kokkos::min(rows, begin + rows_per_partial);
        const int c = pack * width;
        std::int32_t token = tokens(order(begin));
        bool from_before = begin > 0 && tokens(order(begin - 1)) == token;
        Pack<width> sum = {};
        const auto add_up = [&] {
          if (from_before) {
            store(&partial(block, c), sum);
            return;
          }
          auto total = load<width>(&d_table(token, c));
          for (int j = 0; j < width; ++j) total[j] += sum[j];
          store(&d_table(token, c), total);
        };
        for (int i = begin; i < end; i += ahead) {
          std::int32_t ids[ahead];
          Held<width, T> held[ahead];
          for (int k = 0; k < ahead; ++k) {
            const std::int32_t row = order(Kokkos::min(i + k, end - 1));
            ids[k] = tokens(row);
            held[k] = hold<width>(&d_out(row, c));
          }
          for (int k = 0; k < ahead; ++k) {
            if (i + k >= end) break;
            if (ids[k] != token) {
              add_up();
              token = ids[k];
              from_before = false;
              sum = {};
            }
            const auto more = held[k].values();
            for (int j = 0; j < width; ++j) sum[j] += more[j];
          }
        }
        add_up();
      });
}

// Adds the partial sums of a token to the table, where its second block begins.
template <int width, class Exec>
void add_partial(const Exec& exec, const Array1<const std::int32_t, Exec>& tokens,
                 const Array1<const std::int32_t, Exec>& order, const Array2<float, Exec>& d_table,
                 const Array2<float, Exec>& partial) {
  const int rows = order.extent_int(0), blocks = static_cast<int>(norm_partial_rows(rows));
  // Partial sums on their way at once: the most frequent token has so many that it is the last to be done.
  constexpr int ahead = detail::host_memory<Exec> ? 1 : 8;
  const Sections<Exec> sections{d_table.extent_int(1) / width};
  for_each_pack<1>(
      "annulus::model::embed_backward_partial", exec, blocks * sections.count, sections.lanes,
      KOKKOS_LAMBDA(const int piece, const int lane) {
        const int block = piece / sections.count, pack = (piece % sections.count) * sections.lanes + lane;
        if (pack >= sections.packs || block == 0) return;
        const int begin = block * rows_per_partial, before = begin - rows_per_partial;
        const std::int32_t token = tokens(order(begin));
        if (tokens(order(begin - 1)) != token) return;
        if (before > 0 && tokens(order(before - 1)) == token) return;  // an earlier block does it
        const int c = pack * width;
        auto total = load<width>(&d_table(token, c));
        // The last block that begins with the token, of which the first is `block`: ids are sorted.
        int last = block;
        for (int beyond = blocks; beyond - last > 1;) {
          const int middle = last + (beyond - last) / 2;
          (tokens(order(middle * rows_per_partial)) == token ? last : beyond) = middle;
        }
        for (int b = block; b <= last; b += ahead) {
          Pack<width> more[ahead];
          for (int k = 0; k < ahead; ++k) more[k] = load<width>(&partial(Kokkos::min(b + k, last), c));
          for (int k = 0; k < ahead && b + k <= last; ++k)
            for (int j = 0; j < width; ++j) total[j] += more[k][j];
        }
        store(&d_table(token, c), total);
      });
}

}  // namespace

template <class Exec, class T>
void embed(const Exec& exec, const Array1<const std::int32_t, Exec>& tokens,
           const Array2<const T, Exec>& table, const Array2<T, Exec>& out) {
  with_pack_width<Exec, T>(in_packs<Exec, T>(out.extent(1), table, out), [&](auto width) {
    embed_packs<decltype(width)::value>(exec, tokens, table, out);
  });
}

template <class Exec, class T>
void embed_backward(const Exec& exec, const Array1<const std::int32_t, Exec>& tokens,
                    const Array1<const std::int32_t, Exec>& order, const Array2<const T, Exec>& d_out,
                    const Array2<float, Exec>& d_table, const Array2<float, Exec>& partial) {
  with_pack_width<Exec, T>(in_packs<Exec, T>(d_out.extent(1), d_out, d_table, partial), [&](auto width) {
    sum_blocks<decltype(width)::value>(exec, tokens, order, d_out, d_table, partial);
  });
  with_pack_width<Exec, float>(in_packs<Exec, float>(d_out.extent(1), d_table, partial), [&](auto width) {
    add_partial<decltype(width)::value>(exec, tokens, order, d_table, partial);
  });
}

#define ANNULUS_INSTANTIATE(Exec, T)                                                                      \
  template void embed(const Exec&, const Array1<const std::int32_t, Exec>&, const Array2<const T, Exec>&, \
                      const Array2<T, Exec>&);                                                            \
  template void embed_backward(const Exec&, const Array1<const std::int32_t, Exec>&,                      \
                               const Array1<const std::int32_t, Exec>&, const Array2<const T, Exec>&,     \
                               const Array2<float, Exec>&, const Array2<float, Exec>&);
ANNULUS_FOR_TRAINING(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::model
