#pragma once

#include <cstdint>

#include <annulus/core/tensor.hpp>
#include <annulus/model/parameters.hpp>

namespace annulus::model {

/// Matrices and vectors inside the flat elements of a unit (weights, or gradients in fp32), by their offsets
/// in the whole model (ParameterMap).
template <class Exec, class Element>
class FlatUnit {
 public:
  FlatUnit() = default;
  FlatUnit(const ParameterUnit& unit, const Array1<Element, Exec>& elements)
      : elements_(elements.data()), first_(unit.begin) {}

  Array2<Element, Exec> matrix(std::int64_t offset, std::int64_t rows, std::int64_t columns) const {
    return Array2<Element, Exec>(elements_ + (offset - first_), rows, columns);
  }
  Array1<Element, Exec> vector(std::int64_t offset, std::int64_t size) const {
    return Array1<Element, Exec>(elements_ + (offset - first_), size);
  }

 private:
  Element* elements_ = nullptr;
  std::int64_t first_ = 0;  // offset of the unit
};

}  // namespace annulus::model
