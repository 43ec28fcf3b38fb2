#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include <annulus/attention/sequence/position_map.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/memory/array_table.hpp"
#include "base/kokkos/memory/memory.hpp"

namespace annulus::model {

/// Token ids where kernels read them, and in pinned memory of the host, for so many passes until the host
/// waits: after some it waits by itself, so that the memory has a bound. `with_positions`: those of the rows,
/// too.
inline ArrayTable token_arrays(std::int64_t rows, std::int64_t passes, bool with_positions) {
  constexpr std::int64_t most_passes = 8, id = sizeof(std::int32_t);
  ArrayTable table;
  for (const char* label : {"annulus::model::tokens", "annulus::model::targets", "annulus::model::order"})
    table.push_back({label, MemoryCategory::data, rows, id});
  if (with_positions) table.push_back({"annulus::model::positions", MemoryCategory::data, rows, id});
  const auto lists = static_cast<std::int64_t>(table.size());
  for (std::int64_t pass = 0; pass < std::min(passes, most_passes); ++pass)
    table.push_back({"annulus::model::token_staging", MemoryCategory::data, lists * rows, id, true});
  return table;
}

/// Token ids of one pass after the other where kernels read them. Copies go through pinned memory of the
/// host, behind the work of `exec`: every pass since the last `reuse` has staging memory of its own, which is
/// allocated once. Nobody waits for a copy, except that the host waits for the device when none is left.
template <class Exec>
class TokenUpload {
 public:
  using Ids = Array1<const std::int32_t, Exec>;

  TokenUpload(const Exec& exec, std::int64_t rows, bool with_positions = false)
      : rows_(static_cast<std::size_t>(rows)),
        arrays_(token_arrays(rows, std::numeric_limits<std::int64_t>::max(), with_positions)),
        device_lists_(with_positions ? 4 : 3),
        tokens_(allocate<std::int32_t>(exec, arrays_[0])),
        targets_(allocate<std::int32_t>(exec, arrays_[1])),
        order_(allocate<std::int32_t>(exec, arrays_[2])) {
    if (with_positions) positions_ = allocate<std::int32_t>(exec, arrays_[3]);
  }

  /// Copies the ids of a pass, (rows) each, from the host.
  void set(const Exec& exec, std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets) {
    if (used_ + device_lists_ == arrays_.size()) {
      exec.fence("annulus::model: staging memory of tokens is used again");
      reuse();
    }
    if (used_ == staging_.size()) staging_.push_back(allocate_pinned(arrays_[device_lists_ + used_]));
    ++used_;
    std::ranges::copy(tokens, staged(0));
    std::ranges::copy(targets, staged(1));
    copy(exec, 0, *tokens_);
    copy(exec, 1, *targets_);
  }
  /// Copies the positions of the rows of the pass that set was given, one sequence after the other; the
  /// object was made with positions.
  void set_positions(const Exec& exec, std::span<const PositionMap> of_sequences) {
    auto* to = staged(3);
    for (const PositionMap& rows : of_sequences) to = rows.list(to);
    copy(exec, 3, *positions_);
  }
  /// Sorts the rows of the pass by token id, equal ones in ascending order. Apart from set, so that the
  /// device computes meanwhile.
  void sort(const Exec& exec) {
    const std::int32_t* const tokens = staged(0);
    const std::span order(staged(2), rows_);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, [&](std::int32_t a, std::int32_t b) {
      return tokens[a] != tokens[b] ? tokens[a] < tokens[b] : a < b;
    });
    copy(exec, 2, *order_);
  }
  /// The device has done all copies.
  void reuse() { used_ = 0; }

  Ids tokens() const { return *tokens_; }        // (rows)
  Ids targets() const { return *targets_; }      // (rows)
  Ids order() const { return *order_; }          // (rows)
  Ids positions() const { return *positions_; }  // (rows)

 private:
  using Device = Owned<Array1<std::int32_t, Exec>>;
  using Pinned = Kokkos::View<std::int32_t*, Kokkos::LayoutRight, PinnedSpace>;

  // Tokens, targets, order and positions of the pass under way.
  std::int32_t* staged(std::size_t part) const {
    return staging_[used_ - 1].template as<std::int32_t>().data() + part * rows_;
  }
  void copy(const Exec& exec, std::size_t part, const Array1<std::int32_t, Exec>& to) const {
    Kokkos::deep_copy(exec, to, Pinned(staged(part), rows_));
  }

  std::size_t rows_;
  ArrayTable arrays_;
  std::size_t device_lists_;  // of arrays_; the others are staging memory
  std::vector<PinnedBuffer> staging_;
  std::size_t used_ = 0;
  Device tokens_, targets_, order_, positions_;
};

}  // namespace annulus::model
