#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include <annulus/attention/sequence/mask.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/memory/memory.hpp"

namespace annulus::attention {

/// Elements for which memory is taken where `size` are needed: batches that need a few more take no other.
inline std::size_t roomy_size(std::size_t size) {
  return std::max<std::size_t>(std::bit_ceil(size), 1024);
}

/// A mask whose arrays lie in the memory of an execution space. Keeps copies: the Mask may go away.
template <class Exec>
class MaskOn {
 public:
  MaskOn() = default;
  MaskOn(const Exec& exec, const Mask& mask) { set(exec, mask); }

  /// Takes another mask, in the same memory as far as that suffices: nobody uses the one before.
  void set(const Exec& exec, const Mask& mask) {
    rule_ = mask.rule();
    rule_.document_starts =
        copy(exec, "annulus::attention::document_starts", mask.document_starts(), document_starts_);
    rule_.block_row_starts =
        copy(exec, "annulus::attention::block_row_starts", mask.block_row_starts(), block_row_starts_);
    rule_.block_columns =
        copy(exec, "annulus::attention::block_columns", mask.block_columns(), block_columns_);
  }

  /// The rule for kernels on Exec; lives as long as this object.
  const MaskRule& rule() const { return rule_; }

 private:
  using Numbers = Owned<Array1<std::int64_t, Exec>>;

  // Null without values, which is how MaskRule says "no documents" and "no blocks".
  static const std::int64_t* copy(const Exec& exec, const std::string& label,
                                  std::span<const std::int64_t> values, Numbers& numbers) {
    if (values.empty()) return nullptr;
    if (!numbers.allocated() || numbers.view().size() < values.size())
      numbers = Numbers::uninitialized(exec, MemoryCategory::data, label, roomy_size(values.size()));
    const Kokkos::View<const std::int64_t*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged> host(values.data(),
                                                                                             values.size());
    Kokkos::deep_copy(exec, Kokkos::subview(*numbers, std::pair<std::size_t, std::size_t>(0, values.size())),
                      host);
    exec.fence("annulus::attention::MaskOn: the host arrays may go away");
    return numbers.view().data();
  }

  MaskRule rule_;
  Numbers document_starts_, block_row_starts_, block_columns_;
};

}  // namespace annulus::attention
