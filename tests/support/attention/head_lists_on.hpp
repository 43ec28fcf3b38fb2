#pragma once

#include <annulus/attention/sequence/mask_rule.hpp>
#include <annulus/base/kokkos/tensor.hpp>
#include <cstdint>

#include "support/attention/head_lists.hpp"

namespace annulus::test {

/// The lists of HostHeadLists, made by a kernel in the memory of `Exec` and read by nobody
/// on the host: as dynamic sparsity makes them while a step runs.
template <class Exec>
class HeadLists {
 public:
  /// `rule`: what the lists join. Nothing is read before `exec` comes to it.
  HeadLists(const Exec& exec, MaskRule rule, std::int64_t block_size, std::int64_t lists,
            std::int64_t heads_of_list = 1)
      : rule_(rule) {
    rule_.block_size = block_size;
    rule_.block_lists = lists;
    rule_.heads_of_list = heads_of_list;
    const std::int64_t rows = rule_.block_rows();
    starts_ = Array1<std::int64_t, Exec>("annulus::test::block_row_starts", lists * (rows + 1));
    columns_ = Array1<std::int64_t, Exec>("annulus::test::block_columns", lists * rows * rows);
    fill(exec, lists);
    rule_.block_row_starts = starts_.data();
    rule_.block_columns = columns_.data();
  }

  /// Public for nvcc, which wants to see the function that a kernel is written in.
  void fill(const Exec& exec, std::int64_t lists) const {
    const std::int64_t rows = rule_.block_rows();
    const auto starts = starts_, columns = columns_;
    Kokkos::parallel_scan(
        "annulus::test::head_lists", Kokkos::RangePolicy<Exec>(exec, 0, lists * (rows + 1)),
        KOKKOS_LAMBDA(const std::int64_t i, std::int64_t& listed, const bool last) {
          if (last) starts(i) = listed;
          const std::int64_t list = i / (rows + 1), row = i % (rows + 1);
          for (std::int64_t column = 0; row < rows && column < rows; ++column) {
            if (!in_head_list(list, row, column)) continue;
            if (last) columns(listed) = column;
            ++listed;
          }
        });
  }

  /// Lives as long as this object.
  const MaskRule& rule() const { return rule_; }

 private:
  MaskRule rule_;
  Array1<std::int64_t, Exec> starts_, columns_;
};

}  // namespace annulus::test
