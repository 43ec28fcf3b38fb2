#include "attention/kernels/portable/instantiate.hpp"

ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_ATTENTION_PORTABLE, annulus::float16)
