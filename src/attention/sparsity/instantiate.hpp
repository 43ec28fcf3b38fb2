#pragma once

#include "base/kokkos/instantiate.hpp"

/// INSTANTIATE(Exec, T) for both spaces and the storage types of attention.
#define ANNULUS_SPARSITY_SPACES_AND_TYPES(INSTANTIATE)       \
  ANNULUS_ON_HOST_AND_DEVICE(INSTANTIATE, float)             \
  ANNULUS_ON_HOST_AND_DEVICE(INSTANTIATE, annulus::bfloat16) \
  ANNULUS_ON_HOST_AND_DEVICE(INSTANTIATE, annulus::float16)
