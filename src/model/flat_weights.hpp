#pragma once

#include <cstdint>

#include <annulus/core/tensor.hpp>

namespace annulus::model {

/// Matrices and vectors inside the flat buffers of weights and of their gradients, by offset (ParameterMap).
template <class Exec, class T>
struct FlatWeights {
  Array1<const T, Exec> weights;
  Array1<float, Exec> gradients;  // without memory where only the forward is wanted

  Array2<const T, Exec> matrix(std::int64_t offset, std::int64_t rows, std::int64_t columns) const {
    return Array2<const T, Exec>(weights.data() + offset, rows, columns);
  }
  Array2<float, Exec> matrix_gradient(std::int64_t offset, std::int64_t rows, std::int64_t columns) const {
    return Array2<float, Exec>(gradients.data() + offset, rows, columns);
  }
  Array1<const T, Exec> vector(std::int64_t offset, std::int64_t size) const {
    return Array1<const T, Exec>(weights.data() + offset, size);
  }
  Array1<float, Exec> vector_gradient(std::int64_t offset, std::int64_t size) const {
    return Array1<float, Exec>(gradients.data() + offset, size);
  }
};

}  // namespace annulus::model
