#include "attention/kernels/hopper/forward/launch.hpp"

ANNULUS_HOPPER_FORWARD(annulus::bfloat16, 64, false)
ANNULUS_HOPPER_FORWARD_WORKSPACE(64)
