#include "attention/kernels/mma/instantiate.hpp"

ANNULUS_ATTENTION_MMA_FORWARD_FOR(Kokkos::Cuda, annulus::float16)
