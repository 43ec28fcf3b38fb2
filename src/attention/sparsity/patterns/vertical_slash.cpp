
#include <Kokkos_Core.hpp>
#include <algorithm>
#include <memory>
#include <vector>

#include <annulus/base/division.hpp>

#include "attention/sparsity/bits.hpp"
#include "attention/sparsity/pattern.hpp"
#include "attention/sparsity/patterns/choose.hpp"
#include "attention/sparsity/patterns/observed_documents.hpp"
#include "attention/sparsity/patterns/vertical_slash.hpp"
#include "attention/sparsity/patterns/window_scores.hpp"
#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/instantiate.hpp"

namespace annulus::sparsity {

namespace vertical_slash_detail {  // named: device compilers want lambdas and their captures to have linkage

/// Clears the verticals of which slashes hold all later queries of their documents. slashes (lists, words):
/// bits of the block distances of all documents.
template <class Exec>
void drop_covered(const Exec& exec, const ObservedSpans& observed, const Array2<std::uint32_t, Exec>& slashes,
                  const Array2<std::uint32_t, Exec>& verticals) {
  const auto words = static_cast<std::int64_t>(verticals.extent(1));
  Kokkos::parallel_for(
      "annulus::sparsity::drop_covered", Kokkos::RangePolicy<Exec>(exec, 0, verticals.size()),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t list = i / words, first = i % words * word_bits;
        std::uint32_t& word = verticals(list, i % words);
        std::int64_t known = -1, leading = 0;  // block distances 0, 1, … of a document that are all selected
        ObservedDocument document{};
        std::uint32_t left = word;
        for (std::uint32_t rest = left; rest != 0; rest &= rest - 1) {
          const int bit = Kokkos::countr_zero(rest);
          const std::int64_t key = first + bit, which = observed.find(key);
          if (which != known) {
            known = which;
            document = observed.documents[which];
            leading = leading_bits(&slashes(list, 0), document.first_slash, document.blocks());
          }
          const std::int64_t later = document.first_block() + document.blocks() - key / block_tokens;
          if (later <= leading) left &= ~(1u << bit);
        }
        word = left;
      });
}

/// A team of the device has so many threads for a list.
template <class Exec>
inline constexpr int threads_of_list = detail::host_memory<Exec> ? 1 : 256;

/// sizes(0): the largest number of verticals of a list. Adds the blocks that the slashes of all lists hold to
/// sizes(1): slashes (lists, words), of `blocks` block distances, or of none.
template <class Exec>
void measure(const Exec& exec, const Array2<std::uint32_t, Exec>& verticals, const std::uint32_t* slashes,
             std::int64_t blocks, const Array1<std::int64_t, Exec>& sizes) {
  using Policy = Kokkos::TeamPolicy<Exec>;
  const std::int64_t words = ceil_divide(blocks, word_bits);
  Kokkos::parallel_for(
      "annulus::sparsity::measure",
      Policy(exec, static_cast<int>(verticals.extent(0)), threads_of_list<Exec>),
      KOKKOS_LAMBDA(const typename Policy::member_type& team) {
        const std::int64_t list = team.league_rank();
        std::int64_t columns = 0, listed = 0;
        Kokkos::parallel_reduce(
            Kokkos::TeamThreadRange(team, static_cast<std::int64_t>(verticals.extent(1))),
            [&](const std::int64_t word, std::int64_t& sum) {
              sum += Kokkos::popcount(verticals(list, word));
            },
            columns);
        Kokkos::parallel_reduce(
            Kokkos::TeamThreadRange(team, blocks),
            [&](const std::int64_t d, std::int64_t& sum) {
              if (bit_of(slashes + list * words, d)) sum += blocks - d;
            },
            listed);
        Kokkos::single(Kokkos::PerTeam(team), [&] {
          Kokkos::atomic_max(&sizes(0), columns);
          Kokkos::atomic_add(&sizes(1), listed);
        });
      });
}

/// The bits of block rows of the lists first_list … first_list + lists − 1 of `blocks` (all lists, block
/// rows, words), from those of the block distances of each document: slashes (lists, words). All blocks of
/// documents that are not observed. A block off the diagonal has pairs of one document alone, that of the
/// first token of its row. Adds the blocks to sizes(1), where there are sizes.
template <class Exec>
void spread_slashes(const Exec& exec, const Array2<std::uint32_t, Exec>& slashes,
                    const ObservedSpans& observed, const DocumentSpans& spans, std::int64_t sequence,
                    std::int64_t first_list, const Array3<std::uint32_t, Exec>& blocks,
                    const Array1<std::int64_t, Exec>& sizes) {
  const auto rows = static_cast<std::int64_t>(blocks.extent(1)),
             words = static_cast<std::int64_t>(blocks.extent(2)),
             lists = static_cast<std::int64_t>(slashes.extent(0));
  Kokkos::parallel_for(
      "annulus::sparsity::spread_slashes", Kokkos::RangePolicy<Exec>(exec, 0, lists * rows * words),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t list = i / words / rows, row = i / words % rows, first = i % words * word_bits;
        const std::int64_t position = row * block_tokens, which = observed.find(position),
                           most = row - spans.of(sequence, position).begin / block_tokens;
        std::uint32_t word = 0;
        for (std::int64_t d = first; d < first + word_bits && d <= most; ++d) {
          const bool chosen =
              d == 0 || which < 0 || bit_of(&slashes(list, 0), observed.documents[which].first_slash + d);
          if (chosen) word |= 1u << (d - first);
        }
        blocks(first_list + list, row, i % words) = word;
        if (word != 0 && sizes.data() != nullptr)
          Kokkos::atomic_add(&sizes(1), static_cast<std::int64_t>(Kokkos::popcount(word)));
      });
}

/// Positions of the bits of each list, increasing, then `tokens`. Each team writes those of some words.
template <class Exec>
void list_positions(const Exec& exec, const Array2<std::uint32_t, Exec>& bits, std::int64_t tokens,
                    const Array2<std::int32_t, Exec>& positions) {
  using Policy = Kokkos::TeamPolicy<Exec>;
  constexpr std::int64_t words_of_team = 256;
  const auto words = static_cast<std::int64_t>(bits.extent(1)),
             most = static_cast<std::int64_t>(positions.extent(1)), teams = ceil_divide(words, words_of_team);
  Kokkos::parallel_for(
      "annulus::sparsity::list_positions",
      Policy(exec, static_cast<int>(static_cast<std::int64_t>(bits.extent(0)) * teams),
             threads_of_list<Exec>),
      KOKKOS_LAMBDA(const typename Policy::member_type& team) {
        const std::int64_t list = team.league_rank() / teams,
                           first = team.league_rank() % teams * words_of_team,
                           here = words - first < words_of_team ? words - first : words_of_team;
        std::int64_t before_team = 0, of_team = 0;
        Kokkos::parallel_reduce(
            Kokkos::TeamThreadRange(team, first),
            [&](const std::int64_t word, std::int64_t& sum) { sum += Kokkos::popcount(bits(list, word)); },
            before_team);
        Kokkos::parallel_scan(
            Kokkos::TeamThreadRange(team, here),
            [&](const std::int64_t word, std::int64_t& before, const bool last) {
              const std::uint32_t* const of_word = &bits(list, first + word);
              if (last) {
                std::int64_t at = before_team + before;
                for_each_bit_below(of_word, word_bits, [&](std::int64_t bit) {
                  positions(list, at++) = static_cast<std::int32_t>((first + word) * word_bits + bit);
                });
              }
              before += Kokkos::popcount(*of_word);
            },
            of_team);
        if (first + here < words) return;
        Kokkos::parallel_for(
            Kokkos::TeamThreadRange(team, before_team + of_team, most),
            [&](const std::int64_t j) { positions(list, j) = static_cast<std::int32_t>(tokens); });
      });
}

template <class Exec, class T>
class VerticalSlashPattern final : public Pattern<Exec, T> {
 public:
  explicit VerticalSlashPattern(const VerticalSlash& options) : options_(options) {}

  Selection<Exec> select(const Exec& exec, comm::Communicator& communicator,
                         const PatternInputs<Exec, T>& in) override {
    const Region region("annulus::sparsity::select");
    options_.check(in.tokens, in.packed(), "sparsity");
    Selection<Exec> made = in.selection((options_.of_query_heads ? in.q : in.k).extent_int(1),
                                        in.packed() ? PatternRows::of_block : PatternRows::all);
    const std::int64_t lists = made.all_lists(), blocks = made.block_rows();
    made.blocks = Owned<Array3<std::uint32_t, Exec>>::uninitialized(
        exec, MemoryCategory::activations, "annulus::sparsity::slashes", lists, in.packed() ? blocks : 1,
        ceil_divide(blocks, word_bits));
    observe(exec, in);
    const auto is_empty = [](const auto& of_set) { return of_set->documents().empty(); };
    const bool all = std::ranges::all_of(observed_, is_empty);
    if (all && !in.packed()) {  // every causal pair, also those whose probability rounds to nothing
      choose_all<Exec>(exec, blocks, *made.blocks);
      made.listed = lists * blocks * (blocks + 1) / 2;
      made.columns = positions(exec, lists, 0);
      return made;
    }
    const auto verticals = Owned<Array2<std::uint32_t, Exec>>::uninitialized(
        exec, MemoryCategory::workspace, "annulus::sparsity::verticals", lists,
        ceil_divide(in.tokens, word_bits));
    if (std::ranges::any_of(observed_, is_empty)) Kokkos::deep_copy(exec, *verticals, 0u);
    Owned<Array1<std::int64_t, Exec>> sizes;
    if (!options_.fixed())
      sizes = Owned<Array1<std::int64_t, Exec>>::zeroed(exec, MemoryCategory::workspace,
                                                        "annulus::sparsity::sizes", 2);
    // With fixed numbers both sizes are known beforehand: the host need not wait for the selection, and what
    // is kept of it is allocated before the large memory of the scores, not in the midst of it.
    const bool sizes_are_known = options_.fixed() || all;
    made.listed = most_blocks(made);
    if (sizes_are_known) made.columns = positions(exec, lists, most_verticals());
    const int sequences = made.batch / static_cast<int>(std::ssize(observed_));  // of a set of documents
    for (std::size_t set = 0; set < observed_.size(); ++set)
      select_sequences(exec, communicator, in, *observed_[set], static_cast<int>(set) * sequences, sequences,
                       made, *verticals, *sizes);
    if (!sizes_are_known) {
      measure<Exec>(exec, *verticals, made.blocks.view().data(), in.packed() ? 0 : blocks, *sizes);
      std::int64_t host[2] = {};
      const Queue queue(exec);
      queue.copy_to_host(host, sizes.view().data(), sizeof(host));
      queue.fence("annulus::sparsity::select: how many columns and blocks there are");
      made.columns = positions(exec, lists, host[0]);
      made.listed = host[1];
    }
    list_positions<Exec>(exec, *verticals, in.tokens, *made.columns);
    return made;
  }

 private:
  /// Keeps `observed_` as long as the documents stay the same.
  void observe(const Exec& exec, const PatternInputs<Exec, T>& in) {
    if (!observed_.empty() && documents_ == in.documents) return;
    observed_.clear();
    documents_ = in.documents;
    const Documents<Exec> one(in.tokens);
    const Documents<Exec>& documents = documents_ != nullptr ? *documents_ : one;
    for (std::int64_t set = 0; set < documents.sets(); ++set)
      observed_.push_back(std::make_unique<ObservedDocuments<Exec>>(
          exec, documents.of_set(set), in.packed(), in.positions, options_.window, options_.all_below()));
  }

  /// Sets the bits of the verticals, (all lists, words), and the blocks of `made` for sequences `first` …
  /// first + count − 1, whose documents are the same.
  void select_sequences(const Exec& exec, comm::Communicator& communicator, const PatternInputs<Exec, T>& in,
                        const ObservedDocuments<Exec>& observed, int first, int count,
                        const Selection<Exec>& made, const Array2<std::uint32_t, Exec>& verticals,
                        const Array1<std::int64_t, Exec>& sizes) const {
    const std::int64_t lists = std::int64_t{count} * made.lists,
                       first_list = std::int64_t{first} * made.lists,
                       words = ceil_divide(observed.places().slashes, word_bits);
    Owned<Array2<std::uint32_t, Exec>> of_documents;
    if (in.packed())
      of_documents = Owned<Array2<std::uint32_t, Exec>>::uninitialized(
          exec, MemoryCategory::workspace, "annulus::sparsity::document_slashes", lists, words);
    const Array2<std::uint32_t, Exec> slashes =
        in.packed() ? of_documents.view()
                    : Array2<std::uint32_t, Exec>(made.blocks.view().data(), lists, words);
    if (!observed.documents().empty()) {
      const Array2<std::uint32_t, Exec> own(verticals.data() + first_list * verticals.extent(1), lists,
                                            verticals.extent(1));
      choose(exec,
             window_masses<Exec, T>(exec, communicator, in.some_sequences(first, count), observed, made.lists,
                                    options_.joint),
             observed, slashes, own);
      drop_covered<Exec>(exec, observed.spans(), slashes, own);
    }
    if (in.packed())
      spread_slashes<Exec>(exec, slashes, observed.spans(), in.spans(), first, first_list, *made.blocks,
                           sizes);
  }

  /// The bits of the slashes of all documents and of the verticals, (lists, words) each.
  void choose(const Exec& exec, const Owned<Array2<std::int64_t, Exec>>& masses,
              const ObservedDocuments<Exec>& observed, const Array2<std::uint32_t, Exec>& slashes,
              const Array2<std::uint32_t, Exec>& verticals) const {
    const MassPlaces& places = observed.places();
    const std::int64_t* const first = masses.view().data();
    if (!options_.joint) {
      choose_largest<Exec>(exec, {{{first + places.first_slash(), places.all(), places.slashes},
                                   {options_.recall, options_.slashes, options_.local_slashes()},
                                   slashes,
                                   observed.of_slashes()},
                                  {{first, places.all(), places.tokens},
                                   {options_.recall, options_.verticals, options_.sinks},
                                   verticals,
                                   observed.of_keys()}});
      return;
    }
    const auto both = Owned<Array2<std::uint32_t, Exec>>::uninitialized(
        exec, MemoryCategory::workspace, "annulus::sparsity::chosen", slashes.extent(0),
        ceil_divide(places.all(), word_bits));
    choose_largest<Exec>(
        exec,
        {{{first, places.all(), places.all(), places.first_slash()},
          {.recall = options_.recall, .forced = options_.sinks, .forced_wide = options_.local_slashes()},
          *both,
          observed.of_both()}});
    using Words = Kokkos::pair<std::size_t, std::size_t>;
    const Words of_keys(0, verticals.extent(1)), of_slashes(of_keys.second, both.view().extent(1));
    Kokkos::deep_copy(exec, verticals, Kokkos::subview(both.view(), Kokkos::ALL, of_keys));
    Kokkos::deep_copy(exec, slashes, Kokkos::subview(both.view(), Kokkos::ALL, of_slashes));
  }

  /// Columns of the list with the most, with fixed numbers.
  std::int64_t most_verticals() const {
    std::int64_t most = 0;
    for (const auto& of_set : observed_) {
      std::int64_t all = 0;
      for (const ObservedDocument& document : of_set->documents())
        all += std::min(options_.verticals, document.end - document.begin);
      most = std::max(most, all);
    }
    return most;
  }

  /// Blocks of all lists, or more, with fixed numbers or where no document is observed.
  std::int64_t most_blocks(const Selection<Exec>& made) const {
    const auto sets = static_cast<std::int64_t>(observed_.size());
    std::int64_t listed = made.pattern_rows == PatternRows::all ? 0 : sets * made.block_rows();
    for (const auto& of_set : observed_) {
      listed += of_set->dense_blocks();
      for (const ObservedDocument& document : of_set->documents())
        listed += most_listed(document.blocks(), options_.slashes) -
                  (made.pattern_rows == PatternRows::all ? 0 : document.blocks());
    }
    return listed * (made.all_lists() / sets);
  }

  static Owned<Array2<std::int32_t, Exec>> positions(const Exec& exec, std::int64_t lists,
                                                     std::int64_t most) {
    return Owned<Array2<std::int32_t, Exec>>::uninitialized(exec, MemoryCategory::activations,
                                                            "annulus::sparsity::positions", lists, most);
  }

  VerticalSlash options_;
  std::shared_ptr<const Documents<Exec>> documents_;
  std::vector<std::unique_ptr<ObservedDocuments<Exec>>> observed_;  // of each set
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
