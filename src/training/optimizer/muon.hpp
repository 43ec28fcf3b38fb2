#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include <annulus/base/dtype.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/memory/array_table.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "training/optimizer/clip.hpp"

namespace annulus::optimizer {

/// The largest of the matrices that are made orthogonal one after the other.
struct MuonSizes {
  std::int64_t elements = 0;
  std::int64_t side = 0;  ///< the shorter one's length

  void include(std::int64_t rows, std::int64_t columns);
};

/// Arrays that making them orthogonal takes, for as long as it takes: the matrix in fp32, as many bytes for
/// the iterates, and two square ones of its shorter side in the type of the products. In this order; none
/// where there are no matrices.
ArrayTable muon_arrays(const MuonSizes& sizes, DType products);

/// Multiply-adds, two operations each, of making one orthogonal.
double muon_flops(std::int64_t rows, std::int64_t columns);

/// Root of the mean square that Muon gives updates of a matrix: 0.2 · sqrt(max(rows, columns)) times an
/// orthogonal one, about that of AdamW's (Liu et al., Muon is Scalable for LLM Training, section 2.2), so
/// that one learning rate and one weight decay serve both.
double muon_scale(std::int64_t rows, std::int64_t columns);

/// The orthogonal factor of a matrix as Muon takes it (Jordan et al., Muon: An optimizer for hidden layers in
/// neural networks): five Newton–Schulz iterations X ← a X + (b A + c A²) X with A = X Xᵀ from X = G / ‖G‖.
/// Singular values come to lie around 1, not at it. `products`: the type of X, A and the polynomial, f32 or
/// bf16, of which products sum in fp32.
template <class Exec>
class Orthogonalizer {
 public:
  Orthogonalizer(const MuonSizes& sizes, DType products)
      : products_(products), arrays_(muon_arrays(sizes, products)) {}

  /// Memory for calls of the sizes; work and memory of one optimizer step.
  class Space {
   public:
    Space(const Exec& exec, const ArrayTable& arrays);
    /// Where the matrix lies, (rows, columns).
    Array2<float, Exec> matrix(std::int64_t rows, std::int64_t columns) const;

   private:
    friend class Orthogonalizer;
    Owned<Array1<float, Exec>> matrix_, iterates_;
    Owned<Array1<std::byte, Exec>> square_, polynomial_;
  };
  Space space(const Exec& exec) const { return Space(exec, arrays_); }

  /// space.matrix(rows, columns) becomes its orthogonal factor. Waits for `exec`, for the norm. A matrix of
  /// zeros stays one.
  void make_orthogonal(const Exec& exec, const Space& space, std::int64_t rows, std::int64_t columns);

 private:
  template <class T>
  void iterate(const Exec& exec, const Space& space, std::int64_t rows, std::int64_t columns, float factor);

  DType products_;
  ArrayTable arrays_;
  std::map<std::int64_t, NormBlocks<Exec>> blocks_;  // by elements
  GradientClipper<Exec> norm_{1.0};
};

}  // namespace annulus::optimizer
