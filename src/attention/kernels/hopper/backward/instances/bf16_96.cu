#include "attention/kernels/hopper/backward/launch.hpp"

ANNULUS_HOPPER_BACKWARD(annulus::bfloat16, 96, whole)
