#include "attention/kernels/instantiate.hpp"
#include "attention/kernels/portable/instantiate.hpp"

ANNULUS_ATTENTION_SPACES(ANNULUS_ATTENTION_PORTABLE, annulus::float16)
