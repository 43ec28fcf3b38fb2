#pragma once

#include "base/kokkos/instantiate.hpp"

/// Lists of what attention is compiled for. The macro argument takes an execution space, or one and an
/// element type.

/// INSTANTIATE(Exec, further arguments) for the host's space, for Serial and for the device where these are
/// others.
#define ANNULUS_ATTENTION_SPACES(INSTANTIATE, ...)                   \
  ANNULUS_ON_HOST_AND_DEVICE(INSTANTIATE __VA_OPT__(, ) __VA_ARGS__) \
  ANNULUS_ON_SERIAL(INSTANTIATE __VA_OPT__(, ) __VA_ARGS__)

/// INSTANTIATE(Exec, T) for every space and every storage type.
#define ANNULUS_ATTENTION_SPACES_AND_TYPES(INSTANTIATE)    \
  ANNULUS_ATTENTION_SPACES(INSTANTIATE, float)             \
  ANNULUS_ATTENTION_SPACES(INSTANTIATE, annulus::bfloat16) \
  ANNULUS_ATTENTION_SPACES(INSTANTIATE, annulus::float16)
