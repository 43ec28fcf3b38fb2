#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>

#include <annulus/attention/kernels/local.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/memory/memory.hpp"

/// Columns that several query heads share, as a list of each query head: in the backward pass a block of
/// threads owns a tile of keys and goes through all queries of the heads that read it, and a kv head has too
/// few columns to occupy a GPU.
namespace annulus::sparsity {

namespace head_columns_detail {  // named: device compilers want lambdas and their captures to have linkage

/// to (lists · group, each): every list of from (lists, each) `group` times.
template <class Exec, class E>
void repeat(const Exec& exec, const E* from, std::int64_t each, std::int64_t group,
            const Array1<E, Exec>& to) {
  Kokkos::parallel_for(
      "annulus::sparsity::repeat_columns", Kokkos::RangePolicy<Exec>(exec, 0, to.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t i) { to(i) = from[i / each / group * each + i % each]; });
}

}  // namespace head_columns_detail

/// Sums of `group` heads each, one after the other: of (lists · group, each) comes (lists, each).
template <class Exec>
void add_heads(const Exec& exec, const float* from, std::int64_t each, std::int64_t group,
               const Array1<float, Exec>& to) {
  Kokkos::parallel_for(
      "annulus::sparsity::add_heads", Kokkos::RangePolicy<Exec>(exec, 0, to.extent(0)),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const float* const first = from + i / each * group * each + i % each;
        float sum = first[0];
        for (std::int64_t head = 1; head < group; ++head) sum += first[head * each];
        to(i) = sum;
      });
}

/// The lists of `group` query heads each, head by head.
template <class Exec, class T>
class HeadColumns {
 public:
  /// `of_lists`: with k, v (batch, lists, columns, head_dim), kv_listed (batch · lists, columns) and
  /// row_starts (batch · lists, block rows + 1) of its mask.
  HeadColumns(const Exec& exec, const attention::Operands<T, Exec>& of_lists)
      : HeadColumns(exec, of_lists, of_lists.mask.heads_of_list, of_lists.mask.block_rows() + 1) {}

  /// Operands with the gathered pairs: k, v (batch, heads, columns, head_dim), and a list for each head.
  const attention::Operands<T, Exec>& operands() const { return operands_; }

 private:
  HeadColumns(const Exec& exec, const attention::Operands<T, Exec>& of_lists, std::int64_t group,
              std::int64_t starts_of_list)
      : operands_(of_lists),
        memory_(Owned<Array1<T, Exec>>::uninitialized(
            exec, MemoryCategory::workspace, "annulus::sparsity::head_columns",
            2 * of_lists.k.size() * static_cast<std::size_t>(group))),
        numbers_(Owned<Array1<std::int64_t, Exec>>::uninitialized(
            exec, MemoryCategory::workspace, "annulus::sparsity::head_lists",
            of_lists.k.extent(0) * of_lists.k.extent(1) * static_cast<std::size_t>(group) *
                (of_lists.k.extent(2) + static_cast<std::size_t>(starts_of_list)))) {
    using head_columns_detail::repeat;
    const auto& k = of_lists.k;
    const auto columns = static_cast<std::int64_t>(k.extent(2)),
               each = columns * static_cast<std::int64_t>(k.extent(3)),
               heads = static_cast<std::int64_t>(k.extent(0) * k.extent(1)) * group;
    const Array1<T, Exec> keys(memory_.view().data(), heads * each),
        values(keys.data() + keys.size(), heads * each);
    const Array1<std::int64_t, Exec> places(numbers_.view().data(), heads * columns),
        starts(places.data() + places.size(), heads * starts_of_list);
    repeat<Exec, T>(exec, k.data(), each, group, keys);
    repeat<Exec, T>(exec, of_lists.v.data(), each, group, values);
    repeat<Exec, std::int64_t>(exec, of_lists.kv_listed, columns, group, places);
    repeat<Exec, std::int64_t>(exec, of_lists.mask.block_row_starts, starts_of_list, group, starts);
    const std::size_t all = k.extent(1) * static_cast<std::size_t>(group);
    operands_.k = Array4<T, Exec>(keys.data(), k.extent(0), all, k.extent(2), k.extent(3));
    operands_.v = Array4<T, Exec>(values.data(), k.extent(0), all, k.extent(2), k.extent(3));
    operands_.kv_listed = places.data();
    operands_.mask.block_row_starts = starts.data();
    operands_.mask.block_lists *= group;
    operands_.mask.heads_of_list = 1;
  }

  attention::Operands<T, Exec> operands_;
  Owned<Array1<T, Exec>> memory_;
  Owned<Array1<std::int64_t, Exec>> numbers_;
};

}  // namespace annulus::sparsity
