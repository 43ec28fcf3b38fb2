#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <annulus/attention/sequence/position_map.hpp>

#include "attention/kernels/key_tiles.hpp"
#include "attention/kernels/mask_on.hpp"
#include "attention/sparsity/documents.hpp"
#include "attention/sparsity/patterns/choose.hpp"
#include "attention/sparsity/patterns/mass_places.hpp"

namespace annulus::sparsity {

/// A document of which the last queries observe which of its keys and block distances matter. Its blocks are
/// those of the sequence, the first and the last one perhaps shared with other documents.
struct ObservedDocument {
  std::int64_t begin, end;   ///< positions
  std::int64_t first_slash;  ///< number of its block distance 0 among those of all observed documents

  KOKKOS_FUNCTION std::int64_t first_block() const { return begin / block_tokens; }
  KOKKOS_FUNCTION std::int64_t blocks() const { return (end - 1) / block_tokens - first_block() + 1; }
};

/// For kernels.
struct ObservedSpans {
  const ObservedDocument* documents;  ///< increasing
  std::int64_t count;
  std::int64_t queries;       ///< of a window
  attention::KeyTiles tiles;  ///< of a rank's keys; groups are documents

  /// The document that has the position, or −1.
  KOKKOS_FUNCTION std::int64_t find(std::int64_t position) const {
    std::int64_t low = 0, high = count;
    while (low < high) {  // the first one that ends behind the position
      const std::int64_t middle = (low + high) / 2;
      if (documents[middle].end <= position) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low < count && documents[low].begin <= position ? low : -1;
  }
};

/// The documents of a sequence that are observed, and what of them lies where: in memory of the execution
/// space, and on the host.
template <class Exec>
class ObservedDocuments {
 public:
  /// `starts`: of all documents, closed by the sequence's tokens. Not observed are those shorter than
  /// `dense_below` and, where the mask has documents (`packed`), those of one block, which have nothing to
  /// choose. `keys` are a rank's rows. Windows have `window` queries, or those that a document has.
  ObservedDocuments(const Exec& exec, std::span<const std::int64_t> starts, bool packed,
                    const PositionMap& keys, std::int64_t window, std::int64_t dense_below) {
    const std::int64_t tokens = starts.back();
    std::int64_t longest = 0, slashes = 0;
    for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
      const DocumentSpan document{starts[i], starts[i + 1]};
      const ObservedDocument observed{document.begin, document.end, slashes};
      if (is_dense(document, dense_below)) {
        dense_blocks_ += observed.blocks() * (observed.blocks() - 1) / 2;
        continue;
      }
      if (packed && observed.blocks() == 1) continue;
      documents_.push_back(observed);
      slashes += observed.blocks();
      longest = std::max(longest, document.tokens());
    }
    places_ = {tokens, slashes};
    queries_ = std::min(window, longest);
    for (std::int64_t i = 0; i < std::ssize(documents_); ++i) add(i, keys);
    documents_on_.set(exec, "annulus::sparsity::observed_documents", documents_);
    tiles_on_.set(exec, "annulus::sparsity::key_tiles", tiles_);
    windows_on_.set(exec, "annulus::sparsity::window_positions", windows_);
    if (!packed) return;
    of_keys_.set(exec);
    of_slashes_.set(exec);
    of_both_.set(exec);
  }
  ObservedDocuments(const ObservedDocuments&) = delete;
  ObservedDocuments& operator=(const ObservedDocuments&) = delete;
  ~ObservedDocuments() {
    documents_on_.wait_for_copy(), tiles_on_.wait_for_copy(), windows_on_.wait_for_copy();
  }

  std::span<const ObservedDocument> documents() const { return documents_; }
  ObservedSpans spans() const {
    return {documents_on_.data(), std::ssize(documents_), queries_, {tiles_on_.data(), std::ssize(tiles_)}};
  }
  /// Positions of the windows' queries, window after window, −1 in front of those of a shorter document.
  const std::int64_t* windows() const { return windows_on_.data(); }
  std::int64_t all_queries() const { return std::ssize(windows_); }

  /// Where masses of keys and block distances lie.
  const MassPlaces& places() const { return places_; }
  /// The budgets: of keys, of block distances, and of both as MassPlaces has them.
  Segments of_keys() const { return of_keys_.segments(); }
  Segments of_slashes() const { return of_slashes_.segments(); }
  Segments of_both() const { return of_both_.segments(); }

  /// Blocks off the diagonal of the documents that are dense.
  std::int64_t dense_blocks() const { return dense_blocks_; }

 private:
  struct Parts {
    std::vector<Segment> all;
    std::vector<SegmentPart> parts;
    attention::ValuesOn<Exec, Segment> all_on;
    attention::ValuesOn<Exec, SegmentPart> parts_on;

    ~Parts() { all_on.wait_for_copy(), parts_on.wait_for_copy(); }
    void set(const Exec& exec) {
      parts = parts_of(all);
      all_on.set(exec, "annulus::sparsity::segments", all);
      parts_on.set(exec, "annulus::sparsity::segment_parts", parts);
    }
    /// All items as one where they are not on the device.
    Segments segments() const {
      if (all_on.data() == nullptr) return {};
      return {all_on.data(), std::ssize(all), parts_on.data(), std::ssize(parts)};
    }
  };

  void add(std::int64_t number, const PositionMap& keys) {
    const auto& [begin, end, first_slash] = documents_[static_cast<std::size_t>(number)];
    const std::int64_t behind = first_slash + documents_[static_cast<std::size_t>(number)].blocks();
    for (std::int64_t position = end - queries_; position < end; ++position)
      windows_.push_back(position < begin ? -1 : position);
    const std::int64_t last = keys.rows_below(end);
    for (std::int64_t row = keys.rows_below(begin); row < last; row += attention::KeyTile::most_rows)
      tiles_.push_back({row, static_cast<std::int32_t>(std::min(attention::KeyTile::most_rows, last - row)),
                        static_cast<std::int32_t>(number)});
    const std::int64_t wide = places_.first_slash();
    of_keys_.all.push_back({begin, end});
    of_slashes_.all.push_back({first_slash, behind});
    of_both_.all.push_back({begin, end, wide + first_slash, wide + behind});
  }

  std::vector<ObservedDocument> documents_;
  std::vector<attention::KeyTile> tiles_;
  std::vector<std::int64_t> windows_;
  MassPlaces places_{0, 0};
  std::int64_t queries_ = 0, dense_blocks_ = 0;
  Parts of_keys_, of_slashes_, of_both_;
  attention::ValuesOn<Exec, ObservedDocument> documents_on_;
  attention::ValuesOn<Exec, attention::KeyTile> tiles_on_;
  attention::ValuesOn<Exec, std::int64_t> windows_on_;
};

}  // namespace annulus::sparsity
