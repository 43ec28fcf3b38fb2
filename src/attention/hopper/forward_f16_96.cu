#include "attention/hopper/forward_launch.hpp"

ANNULUS_HOPPER_FORWARD(annulus::float16, 96)
