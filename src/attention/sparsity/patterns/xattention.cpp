#include "attention/sparsity/patterns/xattention.hpp"

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <optional>
#include <vector>

#include "attention/sparsity/bits.hpp"
#include "attention/sparsity/pattern.hpp"
#include "attention/sparsity/patterns/choose.hpp"
#include "attention/sparsity/patterns/tile_scores.hpp"
#include "attention/sparsity/take_rows.hpp"
#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/instantiate.hpp"

namespace annulus::sparsity {

namespace xattention_detail {  // named: device compilers want lambdas and their captures to have linkage

/// Whether a rank with these rows has all tokens of a block.
bool holds(const PositionMap& rows, std::int64_t tokens, std::int64_t block, std::int64_t which) {
  const std::int64_t first = which * block, end = std::min(first + block, tokens);
  return rows.rows_below(end) - rows.rows_below(first) == end - first;
}

/// Block rows for which a rank selects: those of which it has all queries, and some of those of which no rank
/// has all.
template <class Exec>
struct BlockRows {
  std::int64_t whole = 0, split = 0;
  /// Block rows in memory of the execution space: the whole ones of this rank, the split ones of all ranks,
  /// and for each rank a row behind the last one of the sequence, which stands for none.
  Owned<Array1<std::int64_t, Exec>> rows;
  std::vector<std::int64_t> of_whole;

  template <class T>
  BlockRows(const Exec& exec, const PatternInputs<Exec, T>& in, std::int64_t block) {
    const std::int64_t all = ceil_divide(in.tokens, block);
    std::vector<std::int64_t> others;
    for (std::int64_t row = 0; row < all; ++row) {
      const auto has_all = [&](const PositionMap& of) { return holds(of, in.tokens, block, row); };
      if (has_all(in.positions)) {
        of_whole.push_back(row);
      } else if (std::ranges::none_of(in.of_ranks, has_all)) {
        others.push_back(row);
      }
    }
    whole = std::ssize(of_whole);
    split = std::ssize(others);
    std::vector<std::int64_t> listed = of_whole;
    listed.insert(listed.end(), others.begin(), others.end());
    listed.insert(listed.end(), in.of_ranks.size(), all);
    rows = Owned<Array1<std::int64_t, Exec>>::uninitialized(exec, MemoryCategory::workspace,
                                                            "annulus::sparsity::block_rows", listed.size());
    const Queue queue(exec);
    queue.copy_from_host(rows.view().data(), listed.data(), listed.size() * sizeof(std::int64_t));
    queue.fence("annulus::sparsity::BlockRows: they are on the device");
  }

  /// `count` of them.
  Array1<const std::int64_t, Exec> from(std::int64_t first, std::int64_t count) const {
    return Array1<const std::int64_t, Exec>(rows.view().data() + first, count);
  }
};

/// to(first list + list, block_rows(i), word) = chosen(list · block rows + i, word); rows behind the last one
/// of the sequence are left out.
template <class Exec>
void spread(const Exec& exec, const Array2<std::uint32_t, Exec>& chosen,
            const Array1<const std::int64_t, Exec>& block_rows, std::int64_t first_list,
            const Array3<std::uint32_t, Exec>& to) {
  const auto rows = static_cast<std::int64_t>(block_rows.extent(0)),
             words = static_cast<std::int64_t>(chosen.extent(1)),
             all_rows = static_cast<std::int64_t>(to.extent(1));
  Kokkos::parallel_for(
      "annulus::sparsity::spread_blocks", Kokkos::RangePolicy<Exec>(exec, 0, chosen.size()),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t list = i / words / rows, row = block_rows(i / words % rows);
        if (row < all_rows) to(first_list + list, row, i % words) = chosen.data()[i];
      });
}

/// Sets the bits of all blocks of the dense documents: bits (lists, block rows, words) by block distance.
template <class Exec>
void fill_dense(const Exec& exec, const Selection<Exec>& made, std::int64_t dense_below) {
  const Array3<std::uint32_t, Exec> bits = *made.blocks;
  const DocumentSpans spans = made.spans();
  const auto rows = static_cast<std::int64_t>(bits.extent(1)),
             words = static_cast<std::int64_t>(bits.extent(2));
  const std::int64_t lists = made.lists, block = made.block;
  Kokkos::parallel_for(
      "annulus::sparsity::dense_documents", Kokkos::RangePolicy<Exec>(exec, 0, bits.size()),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t row = i / words % rows;
        const DocumentSpan document = spans.of(i / words / rows / lists, row * block);
        if (!is_dense(document, dense_below)) return;
        const std::int64_t blocks = row - document.begin / block + 1, rest = blocks - i % words * word_bits;
        if (rest > 0) bits.data()[i] |= rest >= word_bits ? ~0u : (1u << rest) - 1u;
      });
}

/// to (1, 1, rows, head_dim) = the keys of tiles in reverse order, without those that the document of their
/// tile's last token has not.
template <class Exec, class T>
void keep_last_documents(const Exec& exec, const Array4<T, Exec>& from, std::int64_t stride,
                         const DocumentSpans& spans, std::int64_t sequence, const Array4<T, Exec>& to) {
  const auto width = static_cast<std::int64_t>(from.extent(3));
  Kokkos::parallel_for(
      "annulus::sparsity::keep_last_documents", Kokkos::RangePolicy<Exec>(exec, 0, from.size()),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t row = i / width, first = row / stride * stride, end = first + stride,
                           position = first + (stride - 1 - row % stride);
        const std::int64_t last = (end < spans.tokens ? end : spans.tokens) - 1;
        to.data()[i] = position >= spans.of(sequence, last).begin ? from.data()[i] : T{};
      });
}

/// Some heads of (batch, heads, rows, head_dim), as a batch of one; `first` counts over the batch.
template <class Exec, class T>
Array4<const T, Exec> some_heads(const Array4<const T, Exec>& all, std::int64_t first, std::int64_t count) {
  const std::int64_t of_head = static_cast<std::int64_t>(all.extent(2) * all.extent(3));
  return Array4<const T, Exec>(all.data() + first * of_head, 1, count, all.extent(2), all.extent(3));
}

/// Selects for the query heads of one kv head of one sequence.
template <class Exec, class T>
class OfKvHead {
 public:
  using Rows = Array4<T, Exec>;

  /// Gathers the keys. `head` counts over the batch. All of these live longer than this.
  OfKvHead(const Exec& exec, comm::Communicator& communicator, const XAttention& options,
           const PatternInputs<Exec, T>& in, const Selection<Exec>& made, std::int64_t head)
      : exec_(exec),
        communicator_(communicator),
        options_(options),
        in_(in),
        made_(made),
        group_(in.q.extent_int(1) / in.k.extent_int(1)),
        width_(in.q.extent_int(3)),
        lists_(made.lists / in.k.extent_int(1)),
        first_list_(head * lists_),
        q_(some_heads<Exec, T>(in.q, head * group_, group_)),
        sequence_(head / in.k.extent_int(1)),
        at_once_(options.rows_at_once(in.tokens, group_)) {
    const ReversedTiles wanted{options.stride, round_up(in.tokens, options.stride)};
    keys_ = rows_of("annulus::sparsity::tile_keys", 1, wanted.count);
    take_rows<Exec, T>(exec, some_heads<Exec, T>(in.k, head, 1), in.positions, wanted, *keys_);
    communicator.all_reduce(Queue(exec), *keys_);
    if (!in.packed()) return;
    keys_of_later_ = rows_of("annulus::sparsity::later_tile_keys", 1, wanted.count);
    keep_last_documents<Exec, T>(exec, *keys_, options.stride, in.spans(), sequence_, *keys_of_later_);
  }

  /// Selects for the block rows of which this rank has all queries.
  void select_whole(const BlockRows<Exec>& of) const {
    for (std::int64_t first = 0; first < of.whole; first += at_once_) {
      const std::int64_t count = std::min(at_once_, of.whole - first);
      const auto block_rows = of.from(first, count);
      const auto queries = rows_of("annulus::sparsity::tile_queries", group_, count * options_.block);
      take_rows<Exec, T>(exec_, q_, in_.positions, wanted_rows(block_rows), *queries);
      select(*queries, block_rows, of.of_whole[static_cast<std::size_t>(first + count - 1)] + 1);
    }
  }

  /// Selects for the block rows of which no rank has all queries: as many rows for each rank as for the
  /// others, whose queries travel to it. Collective.
  void select_split(const BlockRows<Exec>& of) const {
    const std::int64_t ranks = communicator_.size(), own = communicator_.rank();
    for (std::int64_t first = 0; first < of.split; first += at_once_ * ranks) {
      const std::int64_t count = std::min(at_once_, ceil_divide(of.split - first, ranks)),
                         elements = group_ * count * options_.block * width_;
      const auto block_rows = [&](std::int64_t rank) {
        return of.from(of.whole + first + rank * count, count);
      };
      const auto gathered = Owned<Array1<T, Exec>>::uninitialized(
          exec_, MemoryCategory::workspace, "annulus::sparsity::split_queries", ranks * elements);
      for (std::int64_t rank = 0; rank < ranks; ++rank)
        take_rows<Exec, T>(
            exec_, q_, in_.positions, wanted_rows(block_rows(rank)),
            Rows(gathered.view().data() + rank * elements, 1, group_, count * options_.block, width_));
      const auto queries = rows_of("annulus::sparsity::tile_queries", group_, count * options_.block);
      communicator_.start_reduce_scatter(Queue(exec_), *gathered, *queries, 0).wait();
      select(*queries, block_rows(own), made_.pattern_blocks());
    }
  }

 private:
  Owned<Rows> rows_of(const char* label, std::int64_t heads, std::int64_t count) const {
    return Owned<Rows>::uninitialized(exec_, MemoryCategory::workspace, label, 1, heads, count, width_);
  }
  RowsOfBlocks wanted_rows(const Array1<const std::int64_t, Exec>& block_rows) const {
    return {block_rows.data(), options_.block,
            static_cast<std::int64_t>(block_rows.extent(0)) * options_.block, in_.spans(), sequence_};
  }

  /// Selects for block rows, of which the last one is before `end`, with these queries.
  void select(const Rows& queries, const Array1<const std::int64_t, Exec>& block_rows,
              std::int64_t end) const {
    const std::int64_t tiles_of_block = options_.block / options_.stride,
                       all_tiles = static_cast<std::int64_t>(keys_.view().extent(2)) / options_.stride,
                       tiles = std::min(all_tiles, end * tiles_of_block);
    const auto keys_of_tiles = [&](const Owned<Rows>& keys) {
      return Array4<const T, Exec>(keys.view().data(), 1, 1, tiles * options_.stride, width_);
    };
    const TileOperands<Exec, T> operands{
        .q = queries,
        .k = keys_of_tiles(keys_),
        .k_of_later = in_.packed() ? keys_of_tiles(keys_of_later_) : Array4<const T, Exec>(),
        .block_rows = block_rows,
        .stride = options_.stride,
        .tiles_of_block = tiles_of_block,
        .tokens = in_.tokens,
        .scale = in_.scale,
        .spans = in_.spans(),
        .sequence = sequence_};
    const TileScores<Exec> scores = tile_scores<Exec, T>(exec_, operands);
    const auto masses = block_masses<Exec, T>(exec_, operands, scores, lists_);
    const auto chosen = Owned<Array2<std::uint32_t, Exec>>::uninitialized(
        exec_, MemoryCategory::workspace, "annulus::sparsity::chosen", lists_ * operands.rows(),
        made_.blocks.view().extent(2));
    // Of blocks of equal mass the nearer one; the diagonal's is the nearest of all.
    choose_largest<Exec>(exec_, {{{masses.view().data(), operands.blocks(), operands.blocks()},
                                  {.recall = options_.threshold, .forced = 1},
                                  *chosen}});
    spread<Exec>(exec_, *chosen, block_rows, first_list_, *made_.blocks);
  }

  const Exec& exec_;
  comm::Communicator& communicator_;
  const XAttention& options_;
  const PatternInputs<Exec, T>& in_;
  const Selection<Exec>& made_;
  std::int64_t group_, width_;       // query heads of the kv head; head_dim
  std::int64_t lists_, first_list_;  // of the kv head
  Array4<const T, Exec> q_;          // this rank's, of the group
  std::int64_t sequence_;
  std::int64_t at_once_;       // block rows
  Owned<Rows> keys_;           // all of the sequence (TileOperands::k)
  Owned<Rows> keys_of_later_;  // TileOperands::k_of_later, with documents
};

template <class Exec, class T>
class XAttentionPattern final : public Pattern<Exec, T> {
 public:
  explicit XAttentionPattern(const XAttention& options) : options_(options) {}

  Selection<Exec> select(const Exec& exec, comm::Communicator& communicator,
                         const PatternInputs<Exec, T>& in) override {
    const Region region("annulus::sparsity::select");
    constexpr auto activations = MemoryCategory::activations;
    const int kv_heads = in.k.extent_int(1);
    Selection<Exec> made = in.selection(options_.of_query_heads ? in.q.extent_int(1) : kv_heads,
                                        PatternRows::of_block, options_.block);
    const std::int64_t rows = made.pattern_blocks();
    made.blocks = Owned<Array3<std::uint32_t, Exec>>::zeroed(
        exec, activations, "annulus::sparsity::blocks", made.all_lists(), rows, ceil_divide(rows, word_bits));
    made.columns = Owned<Array2<std::int32_t, Exec>>::uninitialized(
        exec, activations, "annulus::sparsity::positions", made.all_lists(), 0);
    // With a threshold of 1 every causal pair, also those whose probability rounds to nothing.
    if (options_.threshold < 1) {
      if (!block_rows_) block_rows_.emplace(exec, in, options_.block);
      for (std::int64_t head = 0; head < std::int64_t{made.batch} * kv_heads; ++head) {
        const OfKvHead<Exec, T> of_head(exec, communicator, options_, in, made, head);
        of_head.select_whole(*block_rows_);
        of_head.select_split(*block_rows_);
      }
      share_bits(exec, communicator, made);
    }
    if (options_.all_below() > 0) fill_dense(exec, made, options_.all_below());
    made.listed = count_listed(exec, made);  // the one place where the host waits for a selection
    return made;
  }

 private:
  XAttention options_;
  std::optional<BlockRows<Exec>> block_rows_;  // of the rows that all calls are for
};

}  // namespace xattention_detail

template <class Exec, class T>
std::unique_ptr<Pattern<Exec, T>> XAttention::make() const {
  return std::make_unique<xattention_detail::XAttentionPattern<Exec, T>>(*this);
}

#define ANNULUS_INSTANTIATE(EXEC, T) \
  template std::unique_ptr<Pattern<EXEC, T>> XAttention::make<EXEC, T>() const;
ANNULUS_FOR_ATTENTION(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::sparsity
