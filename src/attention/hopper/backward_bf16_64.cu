#include "attention/hopper/backward_launch.hpp"

ANNULUS_HOPPER_BACKWARD(annulus::bfloat16, 64)
template std::size_t annulus::attention::hopper::backward_workspace<64>(
    std::int64_t, std::int64_t, int, const annulus::attention::hopper::LaunchOptions&);
