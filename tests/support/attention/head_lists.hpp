#pragma once

#include <annulus/attention/sequence/mask_rule.hpp>
#include <cstdint>
#include <vector>

namespace annulus::test {

/// Whether block (row, column) is in list `list`. Every fourth list has one block alone, others have a row
/// without any.
inline bool in_head_list(std::int64_t list, std::int64_t row, std::int64_t column) {
  if (list % 4 == 1) return row == 0 && column == 0;
  if (list % 4 == 3 && row == 1) return false;
  return row == column || (7 * list + 5 * row + 3 * column + row * column) % 3 == 0;
}

/// A block list for each `heads_of_list` heads of batch × heads, for host code.
class HostHeadLists {
 public:
  /// `rule`: what the lists join. listed(list, row, column) says which blocks are in them.
  template <class Listed = decltype(in_head_list)>
  HostHeadLists(const MaskRule& rule, std::int64_t block_size, std::int64_t lists,
                std::int64_t heads_of_list = 1, const Listed& listed = in_head_list)
      : rule_(rule) {
    rule_.block_size = block_size;
    rule_.block_lists = lists;
    rule_.heads_of_list = heads_of_list;
    const std::int64_t rows = rule_.block_rows();
    for (std::int64_t list = 0; list < lists; ++list) {
      for (std::int64_t row = 0; row < rows; ++row) {
        starts_.push_back(std::ssize(columns_));
        for (std::int64_t column = 0; column < rows; ++column)
          if (listed(list, row, column)) columns_.push_back(column);
      }
      starts_.push_back(std::ssize(columns_));
    }
    rule_.block_row_starts = starts_.data();
    rule_.block_columns = columns_.data();
  }
  HostHeadLists(const HostHeadLists&) = delete;

  /// Lives as long as this object.
  const MaskRule& rule() const { return rule_; }
  const std::vector<std::int64_t>& starts() const { return starts_; }
  const std::vector<std::int64_t>& columns() const { return columns_; }

 private:
  MaskRule rule_;
  std::vector<std::int64_t> starts_, columns_;
};

}  // namespace annulus::test
