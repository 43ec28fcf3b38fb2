#pragma once

#include <annulus/base/kokkos/tensor.hpp>

#include "training/linalg/matmul.hpp"
#include "training/model/layers/layer_tensors.hpp"
#include "training/model/ops.hpp"

namespace annulus::model {

/// The products of a layer, of matrices (rows, columns).
template <class Exec, class T>
struct LayerProducts {
  using Matrix = Array2<const T, Exec>;

  /// out = x · wᵀ + bias: x (rows, in), w (out, in), bias (out), without elements where there is none. It is
  /// added before the product is rounded.
  static void project(const Exec& exec, const Matrix& x, const Matrix& w, const Array2<T, Exec>& out,
                      const Array1<const T, Exec>& bias = {}) {
    if (bias.size() > 0) {
      fill_rows<Exec, T>(exec, bias, out);
      return project_onto(exec, x, w, out, out);
    }
    linalg::matmul<Exec, T, T>(exec, {.op_b = linalg::Op::transpose}, x, w, out);
  }
  /// out = x · wᵀ + residual, which may be out
  static void project_onto(const Exec& exec, const Matrix& x, const Matrix& w, const Matrix& residual,
                           const Array2<T, Exec>& out) {
    linalg::matmul<Exec, T, T>(exec, {.op_b = linalg::Op::transpose, .beta = 1.0f}, x, w, residual, out);
  }
  /// The gradients of project: d_w += d_outᵀ · x, or d_w = d_outᵀ · x where it holds nothing, and d_x =
  /// d_out · w.
  static void project_backward(const Exec& exec, const Matrix& x, const Matrix& w, const Matrix& d_out,
                               const Array2<T, Exec>& d_x, const Array2<float, Exec>& d_w, bool fresh_d_w) {
    weight_gradient(exec, x, d_out, d_w, fresh_d_w);
    linalg::matmul<Exec, T, T>(exec, {}, d_out, w, d_x);
  }
  /// The gradients of project: d_w as project_backward leaves it, and d_x += d_out · w.
  static void project_backward_onto(const Exec& exec, const Matrix& x, const Matrix& w, const Matrix& d_out,
                                    const Array2<T, Exec>& d_x, const Array2<float, Exec>& d_w,
                                    bool fresh_d_w) {
    weight_gradient(exec, x, d_out, d_w, fresh_d_w);
    linalg::matmul<Exec, T, T>(exec, {.beta = 1.0f}, d_out, w, d_x, d_x);
  }

  static Array2<T, Exec> rows_of(const Array2<T, Exec>& all, Chunk c) {
    return Array2<T, Exec>(all.data() + c.first * all.extent_int(1), c.count, all.extent_int(1));
  }

 private:
  static void weight_gradient(const Exec& exec, const Matrix& x, const Matrix& d_out,
                              const Array2<float, Exec>& d_w, bool fresh_d_w) {
    const float beta = fresh_d_w ? 0.0f : 1.0f;
    linalg::matmul<Exec, T, float>(exec, {.op_a = linalg::Op::transpose, .beta = beta}, d_out, x, d_w);
  }
};

}  // namespace annulus::model
