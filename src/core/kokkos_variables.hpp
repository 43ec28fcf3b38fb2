#pragma once

#include <optional>
#include <string_view>

namespace annulus {

/// All of `text` as an int; nothing where it is none.
std::optional<int> whole_number(std::string_view text);

/// Throws Error that names the variable where KOKKOS_* has a value for which Kokkos::initialize aborts, or
/// which it reads as another one ("4x" as 4).
void check_kokkos_variables();

}  // namespace annulus
