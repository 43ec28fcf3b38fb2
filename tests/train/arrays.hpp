#pragma once

#include <cstdint>
#include <vector>

#include <annulus/model/parameters.hpp>
#include <annulus/train/flat_buffer.hpp>

#include "support/exec.hpp"

namespace annulus::train::test {

/// Flat buffers of a model in the memory of TestExec, with what the host sees of them.
struct Arrays {
  using Array = Array1<float, annulus::test::TestExec>;

  explicit Arrays(const model::ParameterMap& map)
      : parameters("parameters", static_cast<std::size_t>(map.size())),
        first_moment("first_moment", static_cast<std::size_t>(map.size())),
        second_moment("second_moment", static_cast<std::size_t>(map.size())) {}

  operator Buffers() const {  // NOLINT(google-explicit-constructor): they are the same buffers
    const annulus::test::TestExec exec;
    return {{exec, parameters}, {exec, first_moment}, {exec, second_moment}};
  }

  static std::vector<float> values(const FlatBuffer& buffer) {
    std::vector<float> values(static_cast<std::size_t>(buffer.size()));
    buffer.read(0, values);
    return values;
  }

  Array parameters, first_moment, second_moment;
};

}  // namespace annulus::train::test
