#include "attention/kernels/hopper/forward/launch.hpp"

ANNULUS_HOPPER_FORWARD(annulus::bfloat16, 64)
ANNULUS_HOPPER_FORWARD_WORKSPACE(64)
