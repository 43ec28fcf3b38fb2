#pragma once

#include <string>

#include <annulus/attention/sequence/mask.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/memory/memory.hpp"

namespace annulus::attention {

/// A mask whose arrays lie in the memory of an execution space. Keeps copies: the Mask may go away.
template <class Exec>
class MaskOn {
 public:
  MaskOn() = default;
  MaskOn(const Exec& exec, const Mask& mask)
      : rule_(mask.rule()),
        document_starts_(copy(exec, "annulus::attention::document_starts", mask.document_starts())),
        block_row_starts_(copy(exec, "annulus::attention::block_row_starts", mask.block_row_starts())),
        block_columns_(copy(exec, "annulus::attention::block_columns", mask.block_columns())) {
    rule_.document_starts = document_starts_.view().data();
    rule_.block_row_starts = block_row_starts_.view().data();
    rule_.block_columns = block_columns_.view().data();
  }

  /// The rule for kernels on Exec; lives as long as this object.
  const MaskRule& rule() const { return rule_; }

 private:
  using Numbers = Owned<Array1<std::int64_t, Exec>>;

  // A View of no elements has a null pointer, which is how MaskRule says "no documents" and "no blocks".
  static Numbers copy(const Exec& exec, const std::string& label, std::span<const std::int64_t> values) {
    if (values.empty()) return {};
    Numbers numbers = Numbers::uninitialized(exec, MemoryCategory::data, label, values.size());
    const Kokkos::View<const std::int64_t*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged> host(values.data(),
                                                                                             values.size());
    Kokkos::deep_copy(exec, *numbers, host);
    exec.fence("annulus::attention::MaskOn: the host arrays may go away");
    return numbers;
  }

  MaskRule rule_;
  Numbers document_starts_, block_row_starts_, block_columns_;
};

}  // namespace annulus::attention
