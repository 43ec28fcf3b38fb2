#include "attention/kernels/hopper/forward/launch.hpp"

ANNULUS_HOPPER_FORWARD(annulus::float16, 128, whole)
