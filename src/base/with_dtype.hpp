#pragma once

#include <annulus/base/dtype.hpp>

namespace annulus {

/// Calls `use` with a zero of that one of `Types` which `type` stands for; false where none is.
template <class... Types, class Use>
bool with_dtype(DType type, const Use& use) {
  return ((type == dtype_of<Types> && (use(Types{}), true)) || ...);
}

}  // namespace annulus
