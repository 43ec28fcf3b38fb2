#include "attention/kernels/hopper/backward/launch.hpp"

ANNULUS_HOPPER_BACKWARD(annulus::float16, 96, clipped)
