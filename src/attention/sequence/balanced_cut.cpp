#include "attention/sequence/balanced_cut.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <tuple>

#include <annulus/base/error.hpp>

#include "base/fingerprint.hpp"

namespace annulus {

namespace {

/// Global positions.
struct Range {
  std::int64_t begin = 0, end = 0;

  std::int64_t rows() const { return end - begin; }
};

/// Rows of one document.
struct Piece {
  explicit Piece(const Range& of) : document(of) {}

  Range document;
  std::vector<Range> ranges;  ///< in ascending order, not empty
  std::int64_t rows = 0;
  std::int64_t pairs = 0;  ///< unmasked, of its queries

  double density() const { return static_cast<double>(pairs) / static_cast<double>(rows); }
};

/// Σ ⌊min(t, most) / step⌋ over 0 ≤ t < n.
std::int64_t capped_sum(std::int64_t n, std::int64_t most, std::int64_t step) {
  const std::int64_t growing = std::min(n, most), whole = growing / step;
  return whole * (whole - 1) / 2 * step + growing % step * whole + (n - growing) * (most / step);
}

/// What a query attends to inside its document: every `dilation`-th key, counted from its own.
struct Window {
  std::int64_t left = 0, right = 0, dilation = 1;
  std::int64_t layers = 1;  ///< that have it
};
using Windows = std::vector<Window>;

/// Unmasked pairs of a document's queries in a range, in all layers.
std::int64_t pairs_of(const Windows& windows, const Range& document, const Range& queries) {
  const std::int64_t first = queries.begin - document.begin, last = queries.end - document.begin;
  const std::int64_t behind_first = document.end - queries.begin, behind_last = document.end - queries.end;
  std::int64_t pairs = 0;
  for (const auto& [left, right, dilation, layers] : windows)
    pairs += layers * (queries.rows() + capped_sum(last, left, dilation) - capped_sum(first, left, dilation) +
                       capped_sum(behind_first, right, dilation) - capped_sum(behind_last, right, dilation));
  return pairs;
}

void append(Piece& piece, const Windows& windows, const Range& range) {
  piece.ranges.push_back(range);
  piece.rows += range.rows();
  piece.pairs += pairs_of(windows, piece.document, range);
}

std::vector<Piece> whole_documents(const MaskRule& mask, const Windows& windows) {
  std::vector<Piece> pieces;
  const auto add = [&](const Range& document) {
    if (document.rows() <= 0) return;
    append(pieces.emplace_back(document), windows, document);
  };
  if (mask.document_starts == nullptr) add({0, mask.tokens});
  for (std::int64_t d = 0; d < mask.documents; ++d)
    add({mask.document_starts[d], mask.document_starts[d + 1]});
  return pieces;
}

/// The rows of a piece, one after the other, and their pairs.
class Rows {
 public:
  Rows(const Windows& windows, const Piece& piece) : windows_(windows), piece_(piece) {
    for (const Range& range : piece.ranges) {
      rows_.push_back(rows_.back() + range.rows());
      pairs_.push_back(pairs_.back() + pairs_of(windows, piece.document, range));
    }
  }

  std::int64_t pairs_before(std::int64_t row) const {
    const std::size_t i = range_of(row);
    const std::int64_t begin = piece_.ranges[i].begin;
    return pairs_[i] + pairs_of(windows_, piece_.document, {begin, begin + row - rows_[i]});
  }

  /// The rows around `row`, in its range, that lie a multiple of a tile behind the start of the document.
  std::array<std::int64_t, 2> tiles_around(std::int64_t row) const {
    const std::size_t i = range_of(row);
    if (row == rows_[i]) return {row, row};
    const std::int64_t place = piece_.ranges[i].begin - piece_.document.begin + (row - rows_[i]);
    const std::int64_t below = row - place % BalancedCut::tile, above = below + BalancedCut::tile;
    return {std::max(below, rows_[i]), std::min(above, rows_[i + 1])};
  }

  /// Whether a cut before `row` leaves a tile in parts.
  bool parts_tile(std::int64_t row) const { return tiles_around(row)[0] != row; }

  /// Where `rows` consecutive rows begin that have the piece's mean number of pairs, up to `allowed` pairs:
  /// at one end of the piece, if possible, and then where few tiles are cut.
  std::int64_t even_begin(std::int64_t rows, double allowed) const {
    const double pairs = static_cast<double>(rows) * piece_.density();
    const auto excess = [&](std::int64_t begin) {
      return static_cast<double>(pairs_before(begin + rows) - pairs_before(begin)) - pairs;
    };
    const std::int64_t last = piece_.rows - rows;
    // Later queries of a causal document see more keys; where both sides are seen, those in the middle do.
    std::int64_t low = 0, high = excess(last) >= 0 ? last : last / 2;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (excess(middle) >= 0) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    std::int64_t best = low;
    auto best_cost = std::tuple(true, std::numeric_limits<double>::max(), 2, 2);
    const auto tiles = tiles_around(low), end_tiles = tiles_around(low + rows);
    for (const std::int64_t begin : {std::int64_t{0}, last, tiles[0], tiles[1], end_tiles[0] - rows,
                                     end_tiles[1] - rows, low, low - 1}) {
      if (begin < 0 || begin > last) continue;
      const double off = std::abs(excess(begin));
      const int cuts = static_cast<int>(begin > 0) + static_cast<int>(begin < last);
      const int parted = parts_tile(begin) + parts_tile(begin + rows);
      const auto cost = std::tuple(off > allowed, off > allowed ? off : 0.0, cuts, parted);
      if (cost >= best_cost) continue;
      best_cost = cost;
      best = begin;
    }
    return best;
  }

  /// Appends rows [begin, end) to another piece of the document.
  void take(std::int64_t begin, std::int64_t end, Piece& to) const {
    for (std::size_t i = 0; i < piece_.ranges.size(); ++i) {
      const std::int64_t first = std::max(begin, rows_[i]), last = std::min(end, rows_[i + 1]);
      const std::int64_t shift = piece_.ranges[i].begin - rows_[i];
      if (first < last) append(to, windows_, {first + shift, last + shift});
    }
  }

 private:
  std::size_t range_of(std::int64_t row) const {
    const auto behind = std::ranges::upper_bound(rows_, row) - rows_.begin();
    return std::min(static_cast<std::size_t>(behind), piece_.ranges.size()) - 1;
  }

  const Windows& windows_;
  const Piece& piece_;
  std::vector<std::int64_t> rows_{0}, pairs_{0};  // before each range, and of all
};

/// Pieces side by side in the order of their densities, of which one half of the ranks gets an interval.
///
/// What the interval cuts depends on the document. One with more pairs than a rank has is shared by several
/// ranks anyway: any part of it gets its mean number of pairs per row, so that these ranks hold rows of it in
/// proportion to their work, and send and receive equally much. A smaller one is cut in two where the
/// interval ends, so that only the part behind needs keys of the other.
class Order {
 public:
  Order(const Windows& windows, std::vector<Piece> pieces, std::int64_t pairs_of_rank)
      : windows_(windows), pieces_(std::move(pieces)), pairs_of_rank_(pairs_of_rank) {
    std::ranges::sort(pieces_, {}, [](const Piece& piece) {
      return std::tuple(piece.density(), piece.ranges.front().begin);
    });
    rows_.reserve(pieces_.size() + 1);
    for (const Piece& piece : pieces_) {
      rows_.push_back(rows_.back() + piece.rows);
      pairs_.push_back(pairs_.back() + piece.pairs);
    }
  }

  std::int64_t rows() const { return rows_.back(); }
  std::int64_t pairs() const { return pairs_.back(); }
  /// Where pieces begin, and the last one ends.
  std::span<const std::int64_t> boundaries() const { return rows_; }

  double pairs_before(std::int64_t row) const {
    if (pieces_.empty()) return 0;
    const std::size_t i = piece_of(row);
    const std::int64_t in_piece = row - rows_[i];
    const double before = static_cast<double>(pairs_[i]);
    if (in_piece == 0) return before;
    if (is_cut_evenly(i)) return before + pieces_[i].density() * static_cast<double>(in_piece);
    return before + static_cast<double>(Rows(windows_, pieces_[i]).pairs_before(in_piece));
  }

  /// Rows of the document that a cut before `row` makes two ranks share; 0 between two pieces.
  std::int64_t shared_rows(std::int64_t row) const {
    if (pieces_.empty()) return 0;
    const std::size_t i = piece_of(row);
    return row == rows_[i] || row == rows_[i + 1] ? 0 : pieces_[i].document.rows();
  }

  /// The rows nearest to `row`, in its piece, where an interval may end without cutting a tile.
  std::array<std::int64_t, 2> tiles_around(std::int64_t row) const {
    if (pieces_.empty()) return {row, row};
    const std::size_t i = piece_of(row);
    if (row == rows_[i] || is_cut_evenly(i)) return {row, row};
    const auto [below, above] = Rows(windows_, pieces_[i]).tiles_around(row - rows_[i]);
    return {rows_[i] + below, rows_[i] + above};
  }

  /// Whether a cut before `row` leaves a tile in parts.
  bool parts_tile(std::int64_t row) const { return tiles_around(row)[0] != row; }

  /// The pieces in [begin, end), and the others.
  std::pair<std::vector<Piece>, std::vector<Piece>> divide(std::int64_t begin, std::int64_t end,
                                                           double allowed) && {
    std::pair<std::vector<Piece>, std::vector<Piece>> parts;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      Piece& piece = pieces_[i];
      const std::int64_t first = std::max(begin, rows_[i]), rows = std::min(end, rows_[i + 1]) - first;
      if (rows <= 0) {
        parts.second.push_back(std::move(piece));
      } else if (rows == piece.rows) {
        parts.first.push_back(std::move(piece));
      } else {
        const Rows all(windows_, piece);
        const std::int64_t at = is_cut_evenly(i) ? all.even_begin(rows, allowed) : first - rows_[i];
        all.take(at, at + rows, parts.first.emplace_back(piece.document));
        Piece& others = parts.second.emplace_back(piece.document);
        all.take(0, at, others);
        all.take(at + rows, piece.rows, others);
      }
    }
    return parts;
  }

 private:
  bool is_cut_evenly(std::size_t piece) const {
    return pairs_of(windows_, pieces_[piece].document, pieces_[piece].document) > pairs_of_rank_;
  }

  /// The one that holds `row`; the last one for the end.
  std::size_t piece_of(std::int64_t row) const {
    const auto behind = std::ranges::upper_bound(rows_, row) - rows_.begin();
    return std::min(static_cast<std::size_t>(behind), pieces_.size()) - 1;
  }

  const Windows& windows_;
  std::vector<Piece> pieces_;
  std::int64_t pairs_of_rank_;
  std::vector<std::int64_t> rows_{0}, pairs_{0};  // before each piece, and of all
};

/// Where an interval of `rows` rows begins that has `pairs` pairs, up to `allowed`. Of several such begins,
/// the one whose cuts make ranks share the fewest rows of documents, and of equal ones the fewest tiles.
std::int64_t best_interval(const Order& order, std::int64_t rows, double pairs, double allowed) {
  const auto excess = [&](std::int64_t begin) {
    return order.pairs_before(begin + rows) - order.pairs_before(begin) - pairs;
  };
  // Densities grow with the order of the pieces, and so does what an interval has.
  const std::int64_t last = order.rows() - rows;
  const auto first_above = [&](double least) {
    std::int64_t low = 0, high = last;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (excess(middle) >= least) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  };
  const std::int64_t exact = first_above(0), lowest = first_above(-allowed), highest = first_above(allowed);
  std::int64_t best = exact;
  auto best_cost =
      std::tuple(true, std::numeric_limits<double>::max(), 2, std::numeric_limits<std::int64_t>::max());
  const auto consider = [&](std::int64_t begin) {
    if (begin < 0 || begin > last) return;
    const double off = std::abs(excess(begin));
    const std::int64_t shared = order.shared_rows(begin) + order.shared_rows(begin + rows);
    const int parted = order.parts_tile(begin) + order.parts_tile(begin + rows);
    const auto cost = std::tuple(off > allowed, off > allowed ? off : static_cast<double>(shared), parted,
                                 std::abs(begin - exact));
    if (cost >= best_cost) return;
    best_cost = cost;
    best = begin;
  };
  const auto tiles = order.tiles_around(exact), end_tiles = order.tiles_around(exact + rows);
  for (const std::int64_t begin :
       {tiles[0], tiles[1], end_tiles[0] - rows, end_tiles[1] - rows, exact, exact - 1})
    consider(begin);
  const std::span<const std::int64_t> boundaries = order.boundaries();
  for (const std::int64_t shift : {std::int64_t{0}, rows}) {
    for (auto at = std::ranges::lower_bound(boundaries, lowest + shift);
         at != boundaries.end() && *at <= highest + shift; ++at)
      consider(*at - shift);
  }
  return best;
}

struct Divider {
  std::int64_t tokens;
  const Windows& windows;
  int ranks, ranks_per_node;
  std::int64_t pairs_of_rank;  ///< the mean
  double allowed;  ///< share of a half's pairs by which its interval may be off, each even cut by half of it
  std::vector<std::vector<Piece>> pieces;  ///< by rank

  std::int64_t rows_before(int rank) const {
    return rank * (tokens / ranks) + std::min<std::int64_t>(rank, tokens % ranks);
  }

  /// Between nodes, where there are several.
  int middle(int first, int last) const {
    const int half = (first + last) / 2;
    if (ranks_per_node == 0 || first / ranks_per_node == (last - 1) / ranks_per_node) return half;
    const int below = half / ranks_per_node * ranks_per_node, above = below + ranks_per_node;
    return below <= first || (above < last && above - half < half - below) ? above : below;
  }

  void divide(std::vector<Piece> held, int first, int last) {
    if (last - first == 1) {
      pieces[static_cast<std::size_t>(first)] = std::move(held);
      return;
    }
    const int half = middle(first, last);
    Order order(windows, std::move(held), pairs_of_rank);
    const std::int64_t rows = rows_before(last) - rows_before(half);
    const double share = static_cast<double>(last - half) / (last - first);
    const double pairs = static_cast<double>(order.pairs()) * share;
    const double smaller = static_cast<double>(order.pairs()) * std::min(share, 1 - share);
    const std::int64_t begin = best_interval(order, rows, pairs, allowed * smaller);
    auto [inner, outer] = std::move(order).divide(begin, begin + rows, allowed * smaller / 2);
    divide(std::move(outer), first, half);
    divide(std::move(inner), half, last);
  }
};

/// Intervals of positions as runs, those that touch as one.
std::vector<RowRun> runs_of(std::vector<std::pair<std::int64_t, std::int64_t>> intervals,
                            std::int64_t tokens) {
  std::ranges::sort(intervals);
  std::vector<RowRun> runs;
  std::int64_t rows = 0, end = -1;
  for (const auto& [begin, next_end] : intervals) {
    if (begin != end) runs.push_back({rows, begin});
    rows += next_end - begin;
    end = next_end;
  }
  runs.push_back({rows, tokens});
  return runs;
}

PositionMap map_of(std::span<const RowRun> runs) {
  return {.count = runs.back().row, .runs = runs.data(), .run_count = std::ssize(runs) - 1};
}

std::array<std::int64_t, 3> window_of(const MaskRule& rule) {
  return {rule.left, rule.right, rule.dilation};
}

}  // namespace

BalancedCut::BalancedCut(std::span<const MaskedLayers> layers, int ranks, int ranks_per_node)
    : tokens_(layers.front().mask.tokens()),
      documents_fingerprint_(layers.front().mask.documents_fingerprint()),
      ranks_per_node_(ranks_per_node) {
  require(ranks >= 1 && ranks_per_node >= 0, "layout balanced: {} ranks, {} of a node: give 1 or more", ranks,
          ranks_per_node);
  const MaskRule rule = layers.front().mask.rule();
  Windows windows;
  for (const auto& [mask, count] : layers) {
    const MaskRule of_layers = mask.rule();
    require(of_layers.block_row_starts == nullptr,
            "layout balanced: it counts the pairs of causal, window, dilated, full and documents, and the "
            "mask {} has a block list: take zigzag, striped or block-striped:B",
            mask.outline());
    require(of_layers.tokens == tokens_ && mask.documents_fingerprint() == documents_fingerprint_,
            "layout balanced: layers under {} and {} have sequences of other lengths or documents: cut each "
            "for itself",
            layers.front().mask.outline(), mask.outline());
    windows.push_back({of_layers.left, of_layers.right, of_layers.dilation, layers.size() == 1 ? 1 : count});
    windows_.push_back(window_of(of_layers));
  }
  const auto halvings = std::max(1, static_cast<int>(std::bit_width(static_cast<unsigned>(ranks - 1))));
  std::vector<Piece> pieces = whole_documents(rule, windows);
  std::int64_t pairs = 0;
  for (const Piece& piece : pieces) pairs += piece.pairs;
  Divider divider{tokens_,
                  windows,
                  ranks,
                  ranks_per_node,
                  pairs / ranks,
                  tolerance / halvings,
                  std::vector<std::vector<Piece>>(static_cast<std::size_t>(ranks))};
  divider.divide(std::move(pieces), 0, ranks);
  Fingerprint fingerprint;
  for (const std::vector<Piece>& of_rank : divider.pieces) {
    std::vector<std::pair<std::int64_t, std::int64_t>> intervals;
    std::int64_t& pairs_of_rank = pairs_.emplace_back();
    for (const Piece& piece : of_rank) {
      for (const Range& range : piece.ranges) intervals.emplace_back(range.begin, range.end);
      pairs_of_rank += piece.pairs;
    }
    const std::vector<RowRun> runs = runs_of(std::move(intervals), tokens_);
    for (const RowRun& run : runs) fingerprint.add(std::array{run.row, run.position});
    first_run_.push_back(runs_.size());
    runs_.insert(runs_.end(), runs.begin(), runs.end());
  }
  first_run_.push_back(runs_.size());
  fingerprint_ = fingerprint.value();
}

bool BalancedCut::is_for(const Mask& mask, int ranks, int ranks_per_node) const {
  const MaskRule rule = mask.rule();
  return rule.tokens == tokens_ && std::ranges::count(windows_, window_of(rule)) > 0 &&
         mask.documents_fingerprint() == documents_fingerprint_ && ranks == this->ranks() &&
         ranks_per_node == ranks_per_node_;
}

PositionMap BalancedCut::shards(int first, int last) const {
  const auto runs_of_rank = [this](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    return runs().subspan(first_run_[at], first_run_[at + 1] - first_run_[at]);
  };
  if (last - first == 1) return map_of(runs_of_rank(first));
  const std::lock_guard lock(mutex_);
  const auto [at, is_new] = unions_.try_emplace({first, last});
  if (is_new) {
    std::vector<std::pair<std::int64_t, std::int64_t>> intervals;
    for (int rank = first; rank < last; ++rank) {
      const std::span<const RowRun> runs = runs_of_rank(rank);
      for (std::size_t i = 0; i + 1 < runs.size(); ++i)
        intervals.emplace_back(runs[i].position, runs[i].position + runs[i + 1].row - runs[i].row);
    }
    at->second = runs_of(std::move(intervals), tokens_);
  }
  return map_of(at->second);
}

}  // namespace annulus
