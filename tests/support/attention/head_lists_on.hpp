#pragma once

#include <annulus/attention/sequence/mask_rule.hpp>
#include <annulus/base/kokkos/tensor.hpp>
#include <cstdint>

#include "support/attention/head_lists.hpp"

namespace annulus::test {

/// The lists of HostHeadLists in the memory of `Exec`.
template <class Exec>
class HeadLists {
 public:
  /// The lists as of HostHeadLists.
  template <class... Lists>
  explicit HeadLists(const Exec& exec, const Lists&... lists) {
    const HostHeadLists host(lists...);
    rule_ = host.rule();
    starts_ = copied(exec, host.starts());
    columns_ = copied(exec, host.columns());
    rule_.block_row_starts = starts_.data();
    rule_.block_columns = columns_.data();
  }

  /// Lives as long as this object.
  const MaskRule& rule() const { return rule_; }

 private:
  using Numbers = Array1<std::int64_t, Exec>;

  static Numbers copied(const Exec& exec, const std::vector<std::int64_t>& values) {
    const Numbers numbers("annulus::test::head_lists", values.size());
    Kokkos::deep_copy(exec, numbers, Array1<const std::int64_t, HostExec>(values.data(), values.size()));
    exec.fence("annulus::test: the lists are there");
    return numbers;
  }

  MaskRule rule_;
  Numbers starts_, columns_;
};

}  // namespace annulus::test
