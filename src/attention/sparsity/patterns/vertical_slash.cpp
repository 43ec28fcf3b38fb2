
#include <Kokkos_Core.hpp>
#include <algorithm>

#include <annulus/base/division.hpp>

#include "attention/sparsity/bits.hpp"
#include "attention/sparsity/pattern.hpp"
#include "attention/sparsity/patterns/choose.hpp"
#include "attention/sparsity/patterns/vertical_slash.hpp"
#include "attention/sparsity/patterns/window_scores.hpp"
#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/instantiate.hpp"

namespace annulus::sparsity {

namespace vertical_slash_detail {  // named: device compilers want lambdas and their captures to have linkage

/// Whether slashes hold all later queries of a key: its distances 0 … are all there.
KOKKOS_INLINE_FUNCTION bool covered(std::int64_t key, std::int64_t leading, std::int64_t blocks) {
  return blocks - key / block_tokens <= leading;
}

/// Clears the verticals whose pairs slashes hold.
template <class Exec>
void drop_covered(const Exec& exec, const Array3<std::uint32_t, Exec>& slashes, std::int64_t blocks,
                  const Array2<std::uint32_t, Exec>& verticals) {
  const auto words = static_cast<std::int64_t>(verticals.extent(1));
  Kokkos::parallel_for(
      "annulus::sparsity::drop_covered", Kokkos::RangePolicy<Exec>(exec, 0, verticals.size()),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t list = i / words, first = i % words * word_bits;
        std::uint32_t& word = verticals(list, i % words);
        if (word == 0) return;
        const std::int64_t leading = leading_bits(&slashes(list, 0, 0), blocks);
        for (std::int64_t b = 0; b < word_bits; ++b)
          if (covered(first + b, leading, blocks)) word &= ~(1u << b);
      });
}

/// The largest number of verticals of a list, and the blocks that the slashes of all lists hold.
template <class Exec>
void measure(const Exec& exec, const Array3<std::uint32_t, Exec>& slashes, std::int64_t blocks,
             const Array2<std::uint32_t, Exec>& verticals, const Array1<std::int64_t, Exec>& sizes) {
  Kokkos::parallel_for(
      "annulus::sparsity::measure", Kokkos::RangePolicy<Exec>(exec, 0, verticals.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t list) {
        Kokkos::atomic_max(&sizes(0), bits_below(&verticals(list, 0), verticals.extent(1) * word_bits));
        std::int64_t listed = 0;
        for (std::int64_t d = 0; d < blocks; ++d) listed += bit_of(&slashes(list, 0, 0), d) ? blocks - d : 0;
        Kokkos::atomic_add(&sizes(1), listed);
      });
}

/// Positions of the bits of each list, increasing, then `tokens`.
template <class Exec>
void list_positions(const Exec& exec, const Array2<std::uint32_t, Exec>& bits, std::int64_t tokens,
                    const Array2<std::int32_t, Exec>& positions) {
  using Policy = Kokkos::TeamPolicy<Exec>;
  const auto words = static_cast<std::int64_t>(bits.extent(1)),
             most = static_cast<std::int64_t>(positions.extent(1));
  constexpr std::int64_t words_of_part = 8;
  Kokkos::parallel_for(
      "annulus::sparsity::list_positions", Policy(exec, static_cast<int>(bits.extent(0)), Kokkos::AUTO),
      KOKKOS_LAMBDA(const typename Policy::member_type& team) {
        const std::int64_t list = team.league_rank();
        std::int64_t count = 0;
        Kokkos::parallel_scan(
            Kokkos::TeamThreadRange(team, ceil_divide(words, words_of_part)),
            [&](const std::int64_t part, std::int64_t& before, const bool last) {
              const std::int64_t first = part * words_of_part,
                                 here = words - first < words_of_part ? words - first : words_of_part;
              const std::uint32_t* const of_part = &bits(list, first);
              if (last) {
                std::int64_t at = before;
                for_each_bit_below(of_part, here * word_bits, [&](std::int64_t bit) {
                  positions(list, at++) = static_cast<std::int32_t>(first * word_bits + bit);
                });
              }
              before += bits_below(of_part, here * word_bits);
            },
            count);
        Kokkos::parallel_for(Kokkos::TeamThreadRange(team, count, most), [&](const std::int64_t j) {
          positions(list, j) = static_cast<std::int32_t>(tokens);
        });
      });
}

template <class Exec, class T>
class VerticalSlashPattern final : public Pattern<Exec, T> {
 public:
  explicit VerticalSlashPattern(const VerticalSlash& options) : options_(options) {}

  Selection<Exec> select(const Exec& exec, comm::Communicator& communicator,
                         const PatternInputs<Exec, T>& in) override {
    const Region region("annulus::sparsity::select");
    options_.check(in.tokens, "sparsity");
    const int heads = in.q.extent_int(1), kv_heads = in.k.extent_int(1);
    Selection<Exec> made;
    made.tokens = in.tokens;
    made.batch = in.q.extent_int(0);
    made.heads = heads;
    made.lists = options_.of_query_heads ? heads : kv_heads;
    const std::int64_t lists = made.all_lists(), blocks = made.block_rows();
    made.blocks = Owned<Array3<std::uint32_t, Exec>>::uninitialized(exec, MemoryCategory::activations,
                                                                    "annulus::sparsity::slashes", lists, 1,
                                                                    ceil_divide(blocks, word_bits));
    if (options_.recall == 1) {  // every causal pair, also those whose probability rounds to nothing
      choose_all<Exec>(exec, blocks, *made.blocks);
      made.listed = lists * blocks * (blocks + 1) / 2;
      made.columns = positions(exec, lists, 0);
      return made;
    }
    const auto verticals = Owned<Array2<std::uint32_t, Exec>>::uninitialized(
        exec, MemoryCategory::workspace, "annulus::sparsity::verticals", lists,
        ceil_divide(in.tokens, word_bits));
    choose(exec, window_masses<Exec, T>(exec, communicator, in, options_.window, made.lists, options_.joint),
           {in.tokens}, bits_of_mass(made.batch * heads / lists * options_.window),
           Array2<std::uint32_t, Exec>(made.blocks.view().data(), lists, ceil_divide(blocks, word_bits)),
           *verticals);
    drop_covered<Exec>(exec, *made.blocks, blocks, *verticals);
    std::int64_t most = options_.verticals;
    if (options_.fixed()) {  // known beforehand: the host need not wait for the selection
      made.listed = lists * most_listed(blocks, options_.slashes);
    } else {
      const auto [columns, listed] = sizes(exec, made, *verticals);
      most = columns;
      made.listed = listed;
    }
    made.columns = positions(exec, lists, most);
    list_positions<Exec>(exec, *verticals, in.tokens, *made.columns);
    return made;
  }

 private:
  /// The bits of the slashes and of the verticals, (lists, words) each. Masses are below 2^`bits`.
  void choose(const Exec& exec, const Owned<Array2<std::int64_t, Exec>>& masses, const MassPlaces& places,
              int bits, const Array2<std::uint32_t, Exec>& slashes,
              const Array2<std::uint32_t, Exec>& verticals) const {
    const std::int64_t* const first = masses.view().data();
    if (!options_.joint) {
      choose_largest<Exec>(exec, {{{first + places.first_slash(), places.all(), places.blocks(), bits},
                                   {options_.recall, options_.slashes, options_.local_slashes()},
                                   slashes},
                                  {{first, places.all(), places.tokens, bits},
                                   {options_.recall, options_.verticals, options_.sinks},
                                   verticals}});
      return;
    }
    const auto both = Owned<Array2<std::uint32_t, Exec>>::uninitialized(
        exec, MemoryCategory::workspace, "annulus::sparsity::chosen", slashes.extent(0),
        ceil_divide(places.all(), word_bits));
    choose_largest<Exec>(
        exec,
        {{{first, places.all(), places.all(), bits, places.first_slash()},
          {.recall = options_.recall, .forced = options_.sinks, .forced_wide = options_.local_slashes()},
          *both}});
    using Words = Kokkos::pair<std::size_t, std::size_t>;
    const Words of_keys(0, verticals.extent(1)), of_slashes(of_keys.second, both.view().extent(1));
    Kokkos::deep_copy(exec, verticals, Kokkos::subview(both.view(), Kokkos::ALL, of_keys));
    Kokkos::deep_copy(exec, slashes, Kokkos::subview(both.view(), Kokkos::ALL, of_slashes));
  }

  static Owned<Array2<std::int32_t, Exec>> positions(const Exec& exec, std::int64_t lists,
                                                     std::int64_t most) {
    return Owned<Array2<std::int32_t, Exec>>::uninitialized(exec, MemoryCategory::activations,
                                                            "annulus::sparsity::positions", lists, most);
  }

  /// What `measure` finds: the one place where the host waits for a selection.
  static std::pair<std::int64_t, std::int64_t> sizes(const Exec& exec, const Selection<Exec>& made,
                                                     const Array2<std::uint32_t, Exec>& verticals) {
    const auto sizes = Owned<Array1<std::int64_t, Exec>>::zeroed(exec, MemoryCategory::workspace,
                                                                 "annulus::sparsity::sizes", 2);
    measure<Exec>(exec, made.blocks.view(), made.block_rows(), verticals, *sizes);
    std::int64_t host[2] = {};
    const Queue queue(exec);
    queue.copy_to_host(host, sizes.view().data(), sizeof(host));
    queue.fence("annulus::sparsity::select: how many columns and blocks there are");
    return {host[0], host[1]};
  }

  VerticalSlash options_;
};

}  // namespace vertical_slash_detail

template <class Exec, class T>
std::unique_ptr<Pattern<Exec, T>> VerticalSlash::make() const {
  return std::make_unique<vertical_slash_detail::VerticalSlashPattern<Exec, T>>(*this);
}

#define ANNULUS_INSTANTIATE(EXEC, T) \
  template std::unique_ptr<Pattern<EXEC, T>> VerticalSlash::make<EXEC, T>() const;
ANNULUS_FOR_ATTENTION(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::sparsity
