#include "attention/hopper/forward_launch.hpp"

ANNULUS_HOPPER_FORWARD(annulus::bfloat16, 64)
template std::size_t annulus::attention::hopper::forward_workspace<64>(std::int64_t, std::int64_t);
