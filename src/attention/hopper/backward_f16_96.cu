#include "attention/hopper/backward_launch.hpp"

ANNULUS_HOPPER_BACKWARD(annulus::float16, 96)
