#pragma once

#include <algorithm>
#include <annulus/attention/kernels/local.hpp>
#include <annulus/base/error.hpp>
#include <cmath>
#include <limits>
#include <string>

/// What callers of local attention can get wrong. All checks run on the host, before anything is enqueued.
namespace annulus::attention {

/// "(2, 8, 100, 64)"
template <class View>
std::string shape_of(const View& view) {
  std::string text = "(";
  for (std::size_t i = 0; i < View::rank(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(view.extent(i));
  return text + ")";
}

/// Requires `view` to have the extents of `like` in the dimensions that both have.
template <class View, class Like>
void check_extents(const char* name, const View& view, const char* like_name, const Like& like) {
  bool equal = true;
  for (std::size_t i = 0; i < View::rank() && i < Like::rank(); ++i)
    equal = equal && view.extent(i) == like.extent(i);
  if (equal) return;  // texts of shapes are made only when something is wrong
  fail("Attention: {} has the extents {} but {} has {}: {} must match {}", name, shape_of(view), like_name,
       shape_of(like), name, like_name);
}

/// Kernels read whole rows: elements of a row lie side by side.
template <class View>
void check_contiguous_rows(const char* name, const View& view) {
  constexpr std::size_t last = View::rank() - 1;
  if (view.extent(last) <= 1 || view.stride(last) == 1) return;
  fail("Attention: {} {} has stride {} in head_dim: pass an array whose last index is contiguous", name,
       shape_of(view), view.stride(last));
}

inline void check_positions(const char* name, const PositionMap& positions, std::size_t rows,
                            const char* array, const MaskRule& mask) {
  require(positions.count == static_cast<std::int64_t>(rows),
          "Attention: {} describes {} rows but {} has {}: pass the position map of exactly these rows", name,
          positions.count, array, rows);
  require(positions.empty() || (positions.front() >= 0 && positions.back() < mask.tokens),
          "Attention: {} reaches from {} to {} but the mask is for {} tokens: "
          "parse the mask for the whole sequence",
          name, positions.front(), positions.back(), mask.tokens);
}

template <class T, class Exec>
void check_operands(const Operands<T, Exec>& in) {
  const auto check_columns = [](std::size_t columns, const char* name) {
    check_head_dim(static_cast<int>(std::min<std::size_t>(columns, std::numeric_limits<int>::max())), name);
  };
  check_columns(in.q.extent(3), "head_dim");
  check_columns(in.v.extent(3), "v_head_dim");
  if (in.v.extent(0) != in.k.extent(0) || in.v.extent(1) != in.k.extent(1) ||
      in.v.extent(2) != in.k.extent(2)) {
    fail("Attention: v has the extents {} but k has {}: all but the last must be equal", shape_of(in.v),
         shape_of(in.k));
  }
  if (in.k.extent(0) != in.q.extent(0) || in.k.extent(3) != in.q.extent(3)) {
    fail("Attention: k has the extents {} but q has {}: batch and head_dim must be equal", shape_of(in.k),
         shape_of(in.q));
  }
  require(in.k.extent(1) > 0 && in.q.extent(1) > 0 && in.q.extent(1) % in.k.extent(1) == 0,
          "Attention: {} heads are not divisible by {} kv heads: use a multiple", in.q.extent(1),
          in.k.extent(1));
  check_contiguous_rows("q", in.q);
  check_contiguous_rows("k", in.k);
  check_contiguous_rows("v", in.v);
  const std::size_t heads = in.q.extent(0) * in.q.extent(1);
  require(
      !in.mask.has_blocks() || (in.mask.heads_of_list == 0 ? in.mask.block_lists == 1
                                                           : in.mask.block_lists * in.mask.heads_of_list ==
                                                                 static_cast<std::int64_t>(heads)),
      "Attention: the mask has {} block lists of {} heads each but q has {} heads in all sequences: give "
      "one list for all heads (block_lists 1, heads_of_list 0), or lists that together have as many heads",
      in.mask.block_lists, in.mask.heads_of_list, heads);
  check_positions("q_positions", in.q_positions, in.q.extent(2), "q", in.mask);
  require(
      in.mask.query_blocks == nullptr ||
          (in.mask.block_row_starts == nullptr && in.kv_listed == nullptr && in.mask.dilation == 1),
      "Attention: blocks of each query (query_blocks) go neither with a block list nor with listed keys or "
      "dilation: leave these out");
  if (in.kv_listed == nullptr) {
    check_positions("kv_positions", in.kv_positions, in.k.extent(2), "k", in.mask);
    require(!in.mask.blocks_excluded,
            "Attention: the mask's block lists hold masked blocks, which only keys at listed positions have: "
            "give kv_listed");
  } else {
    require(in.mask.dilation == 1,
            "Attention: keys at listed positions have no dilation, but the mask has {}: drop it",
            in.mask.dilation);
  }
  require(std::isfinite(in.scale), "Attention: the scale {} is not finite: usual is 1 / sqrt(head_dim)",
          in.scale);
  require(std::isfinite(in.soft_cap) && in.soft_cap >= 0.0f,
          "Attention: the soft cap {} of the scores is not a positive number: usual is 50, and 0 means none",
          in.soft_cap);
}

/// Checks an array (heads) of a number for each head of `like`, (batch, heads, …).
template <class View, class Like>
void check_sinks(const char* name, const View& view, const char* like_name, const Like& like) {
  require(view.extent(0) == like.extent(1),
          "Attention: {} has {} numbers, but {} has {} heads: give one for each head", name, view.extent(0),
          like_name, like.extent(1));
}

/// Checks an array that has one row per row of `like`.
template <class View, class Like>
void check_array(const char* name, const View& view, const char* like_name, const Like& like) {
  check_extents(name, view, like_name, like);
  if constexpr (View::rank() == 4) check_contiguous_rows(name, view);
}

/// Checks an array of a row of O for each row of Q: (batch, heads, q_rows, v_head_dim).
template <class View, class T, class Exec>
void check_out(const char* name, const View& view, const Operands<T, Exec>& in) {
  const bool like_q = view.extent(0) == in.q.extent(0) && view.extent(1) == in.q.extent(1) &&
                      view.extent(2) == in.q.extent(2);
  if (!like_q || view.extent(3) != in.v.extent(3)) {
    fail("Attention: {} has the extents {}, but q has {} and rows of v have {} columns: {} must match both",
         name, shape_of(view), shape_of(in.q), in.v.extent(3), name);
  }
  check_contiguous_rows(name, view);
}

}  // namespace annulus::attention
