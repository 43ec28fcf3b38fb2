#pragma once

namespace annulus {

/// Throws Error that names the variable where KOKKOS_* has a value for which Kokkos::initialize aborts, or
/// which it reads as another one ("4x" as 4).
void check_kokkos_variables();

}  // namespace annulus
