#include <annulus/base/division.hpp>

#include "base/kokkos/instantiate.hpp"
#include "training/model/ops.hpp"
#include "training/model/ops/rows.hpp"

namespace annulus::model {

namespace {

// The gradient is summed in blocks of so many rows. Fixed, so that sums do not depend on the number of
// threads.
constexpr int rows_of_block = 64;
static_assert(rows_of_block >= rows_per_partial);  // so that norm_partial_rows of them are enough

constexpr int blocks_of(int rows) {
  return ceil_divide(rows, rows_of_block);
}

// Columns are cut into sections of one pack, or `each`, for every lane of a warp, so that many warps share a
// row.
template <class Exec, int each = 1>
struct Sections {
  int packs;                                           // of a row
  int lanes = detail::host_memory<Exec> ? packs : 32;  // of a section
  int count = ceil_divide(packs, (lanes * each));
};

template <int width, class Exec, class T>
void embed_packs(const Exec& exec, const Array1<const std::int32_t, Exec>& tokens,
                 const Array2<const T, Exec>& table, const Array2<T, Exec>& out, float scale) {
  constexpr int each = detail::host_memory<Exec> ? 1 : 4;  // loads on their way at once
  const Sections<Exec, each> sections{out.extent_int(1) / width};
  for_each_pack<1>(
      "annulus::model::embed", exec, out.extent_int(0) * sections.count, sections.lanes,
      KOKKOS_LAMBDA(const int chunk, const int lane) {
        const std::int64_t t = chunk / sections.count, token = tokens(t);
        const int first = (chunk % sections.count) * sections.lanes * each + lane;
        Held<width, T> held[each] = {};
        for (int k = 0; k < each; ++k)
          if (const int pack = first + k * sections.lanes; pack < sections.packs)
            held[k] = hold<width, Caching::stay>(&table(token, pack * width));
        for (int k = 0; k < each; ++k)
          if (const int pack = first + k * sections.lanes; pack < sections.packs) {
            if (scale != 1.0f) {
              auto values = held[k].values();
              for (int j = 0; j < width; ++j) values[j] *= scale;
              held[k] = held_as<T>(values);
            }
            store<Caching::pass>(&out(t, pack * width), held[k]);
          }
      });
}

// `order` is cut into blocks of rows_of_block. A block adds the sums of the tokens whose rows begin in it
// to the table; the sum of the token whose rows began in an earlier block goes to partial(block, :).
template <int width, class Exec, class T>
void sum_blocks(const Exec& exec, const Array1<const std::int32_t, Exec>& tokens,
                const Array1<const std::int32_t, Exec>& order, const Array2<const T, Exec>& d_out,
                const Array2<float, Exec>& d_table, const Array2<float, Exec>& partial, float scale) {
  const int rows = d_out.extent_int(0), blocks = blocks_of(rows);
  constexpr int ahead = 4;  // rows on their way at once
  const Sections<Exec> sections{d_out.extent_int(1) / width};
  for_each_pack<1>(
      "annulus::model::embed_backward", exec, blocks * sections.count, sections.lanes,
      KOKKOS_LAMBDA(const int chunk, const int lane) {
        const int pack = (chunk % sections.count) * sections.lanes + lane;
        if (pack >= sections.packs) return;
        const std::int64_t block = chunk / sections.count, begin = block * rows_of_block,
                           end = Kokkos::min<std::int64_t>(rows, begin + rows_of_block);
        const int c = pack * width;
        std::int64_t token = tokens(order(begin));
        bool from_before = begin > 0 && tokens(order(begin - 1)) == token;
        Pack<width> sum = {};
        const auto add_up = [&] {
          for (int j = 0; j < width; ++j) sum[j] *= scale;
          if (from_before) {
            store(&partial(block, c), sum);
            return;
          }
          auto total = load<width>(&d_table(token, c));
          for (int j = 0; j < width; ++j) total[j] += sum[j];
          store(&d_table(token, c), total);
        };
        for (std::int64_t i = begin; i < end; i += ahead) {
          std::int32_t ids[ahead];
          Held<width, T> held[ahead];
          for (int k = 0; k < ahead; ++k) {
            const std::int64_t row = order(Kokkos::min(i + k, end - 1));
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

// Adds the partial sums of a token to the table, where its second block begins. Little data, so that all of
// the time is latency: a team looks for the token's last block with all its threads at once, and a thread has
// many partial sums on their way.
template <int width, class Exec>
void add_partial(const Exec& exec, const Array1<const std::int32_t, Exec>& tokens,
                 const Array1<const std::int32_t, Exec>& order, const Array2<float, Exec>& d_table,
                 const Array2<float, Exec>& partial) {
  // Bounds, as without them nvcc saves registers and waits for every second load before the next two.
  using Policy = Kokkos::TeamPolicy<Exec, Kokkos::LaunchBounds<256, 4>>;
  constexpr bool host = detail::host_memory<Exec>;
  constexpr int threads = host ? 1 : 256, ahead = host ? 1 : 8;
  const int blocks = blocks_of(order.extent_int(0));
  const int packs = d_table.extent_int(1) / width;
  const int section = host ? packs : threads, sections = ceil_divide(packs, section);
  Kokkos::parallel_for(
      "annulus::model::embed_backward_partial", Policy(exec, blocks * sections, threads),
      KOKKOS_LAMBDA(const typename Policy::member_type& team) {
        const int block = team.league_rank() / sections, begin = team.league_rank() % sections * section;
        if (block == 0) return;
        const auto token_at = [&](const int row) { return tokens(order(Kokkos::max(row, 0))); };
        const int row = block * rows_of_block;
        const std::int64_t token = token_at(row), before = token_at(row - 1),
                           long_before = token_at(row - rows_of_block - 1);
        if (before != token || (block > 1 && long_before == token)) return;  // none, or an earlier block's
        int end = block;  // of the blocks that begin with the token: neighbours, as the rows are sorted
        for (int more = threads; more == threads; end += more)
          Kokkos::parallel_reduce(
              Kokkos::TeamThreadRange(team, Kokkos::min(threads, blocks - end)),
              [&](const int i, int& same) { same += token_at((end + i) * rows_of_block) == token; }, more);
        Kokkos::parallel_for(Kokkos::TeamThreadRange(team, begin, Kokkos::min(packs, begin + section)),
                             [&](const int pack) {
                               const int c = pack * width;
                               auto total = load<width>(&d_table(token, c));
                               for (int first = block; first < end; first += ahead) {
                                 Pack<width> parts[ahead] = {};
                                 for (int k = 0; k < ahead; ++k)
                                   if (first + k < end)
                                     parts[k] = load<width>(&partial(std::int64_t{first} + k, c));
                                 for (int k = 0; k < ahead; ++k)
                                   for (int j = 0; j < width; ++j) total[j] += parts[k][j];
                               }
                               store(&d_table(token, c), total);
                             });
      });
}

}  // namespace

template <class Exec, class T>
void embed(const Exec& exec, const Array1<const std::int32_t, Exec>& tokens,
           const Array2<const T, Exec>& table, const Array2<T, Exec>& out, float scale) {
  with_pack_width<Exec, T>(in_packs<Exec, T>(out.extent(1), table, out), [&](auto width) {
    embed_packs<decltype(width)::value>(exec, tokens, table, out, scale);
  });
}

template <class Exec, class T>
void embed_backward(const Exec& exec, const Array1<const std::int32_t, Exec>& tokens,
                    const Array1<const std::int32_t, Exec>& order, const Array2<const T, Exec>& d_out,
                    const Array2<float, Exec>& d_table, const Array2<float, Exec>& partial, float scale) {
  with_pack_width<Exec, T>(in_packs<Exec, T>(d_out.extent(1), d_out, d_table, partial), [&](auto width) {
    sum_blocks<decltype(width)::value>(exec, tokens, order, d_out, d_table, partial, scale);
  });
  with_pack_width<Exec, float>(in_packs<Exec, float>(d_out.extent(1), d_table, partial), [&](auto width) {
    add_partial<decltype(width)::value>(exec, tokens, order, d_table, partial);
  });
}

ANNULUS_FOR_TRAINING(ANNULUS_COMPILE_TYPED_FUNCTION, embed)
ANNULUS_FOR_TRAINING(ANNULUS_COMPILE_TYPED_FUNCTION, embed_backward)

}  // namespace annulus::model
