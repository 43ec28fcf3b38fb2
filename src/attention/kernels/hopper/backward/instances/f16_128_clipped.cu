#include "attention/kernels/hopper/backward/launch.hpp"

ANNULUS_HOPPER_BACKWARD(annulus::float16, 128, clipped)
