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

/// Rows of a document, as global positions.
struct Piece {
  std::int64_t begin = 0, end = 0;
  std::int64_t document_begin = 0, document_end = 0;
  std::int64_t pairs = 0;  ///< unmasked, of its queries

  std::int64_t rows() const { return end - begin; }
  double density() const { return static_cast<double>(pairs) / static_cast<double>(rows()); }
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

/// Unmasked pairs of the first `rows` queries of a piece, in all layers.
std::int64_t pairs_of_first(const Windows& windows, const Piece& of, std::int64_t rows) {
  const std::int64_t before = of.begin - of.document_begin, behind = of.document_end - of.begin;
  std::int64_t pairs = 0;
  for (const auto& [left, right, dilation, layers] : windows)
    pairs += layers * (rows + capped_sum(before + rows, left, dilation) - capped_sum(before, left, dilation) +
                       capped_sum(behind, right, dilation) - capped_sum(behind - rows, right, dilation));
  return pairs;
}

std::vector<Piece> whole_documents(const MaskRule& mask, const Windows& windows) {
  std::vector<Piece> pieces;
  const auto add = [&](std::int64_t begin, std::int64_t end) {
    Piece piece{begin, end, begin, end, 0};
    piece.pairs = pairs_of_first(windows, piece, piece.rows());
    if (piece.rows() > 0) pieces.push_back(piece);
  };
  if (mask.document_starts == nullptr) add(0, mask.tokens);
  for (std::int64_t d = 0; d < mask.documents; ++d) add(mask.document_starts[d], mask.document_starts[d + 1]);
  return pieces;
}

/// Pieces side by side in the order of their densities, of which one half of the ranks gets an interval.
class Order {
 public:
  Order(const Windows& windows, std::vector<Piece> pieces) : windows_(windows), pieces_(std::move(pieces)) {
    std::ranges::sort(pieces_, {},
                      [](const Piece& piece) { return std::tuple(piece.density(), piece.begin); });
    rows_.reserve(pieces_.size() + 1);
    for (const Piece& piece : pieces_) {
      rows_.push_back(rows_.back() + piece.rows());
      pairs_.push_back(pairs_.back() + piece.pairs);
    }
  }

  std::int64_t rows() const { return rows_.back(); }
  std::int64_t pairs() const { return pairs_.back(); }
  /// Where pieces begin, and the last one ends.
  std::span<const std::int64_t> boundaries() const { return rows_; }

  std::int64_t pairs_before(std::int64_t row) const {
    const std::size_t i = piece_of(row);
    return pairs_[i] + (row > rows_[i] ? pairs_of_first(windows_, pieces_[i], row - rows_[i]) : 0);
  }

  /// Rows of the document that a cut before `row` makes two ranks share; 0 between two pieces.
  std::int64_t shared_rows(std::int64_t row) const {
    const std::size_t i = piece_of(row);
    return row == rows_[i] ? 0 : pieces_[i].document_end - pieces_[i].document_begin;
  }

  /// The rows nearest to `row`, in its piece, that are multiples of a tile behind the start of the document.
  std::pair<std::int64_t, std::int64_t> tiles_around(std::int64_t row) const {
    const std::size_t i = piece_of(row);
    if (row == rows_[i]) return {row, row};
    const std::int64_t place = pieces_[i].begin - pieces_[i].document_begin + (row - rows_[i]);
    const std::int64_t below = row - place % BalancedCut::tile, above = below + BalancedCut::tile;
    return {std::max(below, rows_[i]), std::min(above, rows_[i + 1])};
  }

  /// Whether a cut before `row` leaves a tile in parts.
  bool parts_tile(std::int64_t row) const { return tiles_around(row).first != row; }

  /// The pieces in [begin, end), cut at both ends.
  void take(std::int64_t begin, std::int64_t end, std::vector<Piece>& to) const {
    for (std::size_t i = piece_of(begin); i < pieces_.size() && rows_[i] < end; ++i) {
      Piece piece = pieces_[i];
      piece.begin += std::max<std::int64_t>(begin - rows_[i], 0);
      piece.end -= std::max<std::int64_t>(rows_[i + 1] - end, 0);
      if (piece.rows() <= 0) continue;
      piece.pairs = pairs_of_first(windows_, piece, piece.rows());
      to.push_back(piece);
    }
  }

 private:
  /// The one that holds `row`; the last one for the end.
  std::size_t piece_of(std::int64_t row) const {
    if (pieces_.empty()) return 0;
    const auto behind = std::ranges::upper_bound(rows_, row) - rows_.begin();
    return std::min(static_cast<std::size_t>(behind), pieces_.size()) - 1;
  }

  const Windows& windows_;
  std::vector<Piece> pieces_;
  std::vector<std::int64_t> rows_{0}, pairs_{0};  // before each piece, and of all
};

/// Where the interval of `rows` rows begins that has `pairs` pairs, up to `allowed`: where few rows of
/// documents are shared by what that cuts, and then where few tiles are, if that costs no more than
/// `allowed`.
std::int64_t best_interval(const Order& order, std::int64_t rows, double pairs, double allowed) {
  const auto excess = [&](std::int64_t begin) {
    return static_cast<double>(order.pairs_before(begin + rows) - order.pairs_before(begin)) - pairs;
  };
  // Densities grow with the order of the pieces, and so does what an interval has, or nearly so.
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
       {tiles.first, tiles.second, end_tiles.first - rows, end_tiles.second - rows, exact, exact - 1})
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
  double allowed;                          ///< of the pairs of a half, at each halving
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
    const Order order(windows, std::move(held));
    const std::int64_t rows = rows_before(last) - rows_before(half);
    const double share = static_cast<double>(last - half) / (last - first);
    const double pairs = static_cast<double>(order.pairs()) * share;
    const double smaller = static_cast<double>(order.pairs()) * std::min(share, 1 - share);
    const std::int64_t begin = best_interval(order, rows, pairs, allowed * smaller);
    std::vector<Piece> outer, inner;
    order.take(0, begin, outer);
    order.take(begin, begin + rows, inner);
    order.take(begin + rows, order.rows(), outer);
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
            "mask {} has "
            "a block list: take zigzag, striped or block-striped:B",
            mask.outline());
    require(of_layers.tokens == tokens_ && mask.documents_fingerprint() == documents_fingerprint_,
            "layout balanced: layers under {} and {} have sequences of other lengths or documents: cut each "
            "for itself",
            layers.front().mask.outline(), mask.outline());
    windows.push_back({of_layers.left, of_layers.right, of_layers.dilation, layers.size() == 1 ? 1 : count});
    windows_.push_back(window_of(of_layers));
  }
  const auto halvings = std::max(1, static_cast<int>(std::bit_width(static_cast<unsigned>(ranks - 1))));
  Divider divider{tokens_,
                  windows,
                  ranks,
                  ranks_per_node,
                  tolerance / halvings,
                  std::vector<std::vector<Piece>>(static_cast<std::size_t>(ranks))};
  divider.divide(whole_documents(rule, windows), 0, ranks);
  Fingerprint fingerprint;
  for (const std::vector<Piece>& pieces : divider.pieces) {
    std::vector<std::pair<std::int64_t, std::int64_t>> intervals;
    std::int64_t& pairs = pairs_.emplace_back();
    for (const Piece& piece : pieces) {
      intervals.emplace_back(piece.begin, piece.end);
      pairs += piece.pairs;
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
