#include "attention/kernels/mma/instantiate.hpp"

ANNULUS_ATTENTION_MMA_BACKWARD_FOR(Kokkos::Cuda, annulus::float16)
