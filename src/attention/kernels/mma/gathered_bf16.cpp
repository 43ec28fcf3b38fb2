#include "attention/kernels/mma/gathered_launch.hpp"

ANNULUS_ATTENTION_MMA_GATHERED_FOR(annulus::bfloat16)
