#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>

namespace annulus::sparsity {

/// Whole numbers in which recall is summed, so that the order of the sum does not matter: those of 2²⁴ rows
/// and 2⁷ audits stay below 2⁶³.
inline constexpr double one_recall = 4294967296.0;  // 2³²

/// Adds exp(selected − all) of each of `rows` rows to *sum, in units of one_recall: the share of a row's
/// probability that its selected pairs hold, by the LSE over them and over all pairs.
template <class Exec>
void add_recall(const Exec& exec, const float* selected, const float* all, std::int64_t rows,
                std::int64_t* sum) {
  Kokkos::parallel_for(
      "annulus::sparsity::add_recall", Kokkos::RangePolicy<Exec>(exec, 0, rows),
      KOKKOS_LAMBDA(const std::int64_t row) {
        const double recall = Kokkos::exp(static_cast<double>(selected[row]) - static_cast<double>(all[row]));
        const double most = recall < 1 ? recall : 1;  // rounding may exceed it
        Kokkos::atomic_add(sum, static_cast<std::int64_t>(most * one_recall));
      });
}

}  // namespace annulus::sparsity
