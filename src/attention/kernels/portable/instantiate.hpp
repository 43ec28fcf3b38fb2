#pragma once

#include "attention/kernels/portable/backward.hpp"
#include "attention/kernels/portable/forward.hpp"

/// Compiles both passes for an execution space and an element type.
#define ANNULUS_ATTENTION_PORTABLE(Exec, T)                                                               \
  template void annulus::attention::portable::forward<Exec, T>(                                           \
      const Exec&, const Operands<T, Exec>&, const Strided4<float, Exec>&, const Strided3<float, Exec>&); \
  template void annulus::attention::portable::backward<Exec, T>(const Exec&, const Operands<T, Exec>&,    \
                                                                const BackwardArrays<T, Exec>&);
