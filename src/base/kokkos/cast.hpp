#pragma once

#include <annulus/base/kokkos/tensor.hpp>

namespace annulus {

/// to(i) = from(i), rounded to nearest where To is narrower. Both (elements); Error where the extents differ.
/// For float and bfloat16, either way.
template <class Exec, class To, class From>
void cast(const Exec& exec, const Array1<const From, Exec>& from, const Array1<To, Exec>& to);

}  // namespace annulus
