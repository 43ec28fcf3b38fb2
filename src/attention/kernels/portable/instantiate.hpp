#pragma once

#include "attention/kernels/portable/backward.hpp"
#include "attention/kernels/portable/forward.hpp"
#include "base/kokkos/instantiate.hpp"

/// Compiles both passes for an execution space and an element type.
#define ANNULUS_ATTENTION_PORTABLE(Exec, T)                                      \
  ANNULUS_COMPILE_TYPED_FUNCTION(Exec, T, annulus::attention::portable::forward) \
  ANNULUS_COMPILE_TYPED_FUNCTION(Exec, T, annulus::attention::portable::backward)
