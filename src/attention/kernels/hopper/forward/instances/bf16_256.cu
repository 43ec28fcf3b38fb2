#include "attention/kernels/hopper/forward/launch.hpp"

ANNULUS_HOPPER_FORWARD(annulus::bfloat16, 256, whole)
