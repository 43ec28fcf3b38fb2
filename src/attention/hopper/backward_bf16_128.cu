#include "attention/hopper/backward_launch.hpp"

ANNULUS_HOPPER_BACKWARD(annulus::bfloat16, 128)
template std::size_t annulus::attention::hopper::backward_workspace<128>(
    std::int64_t, std::int64_t, int, const annulus::attention::hopper::LaunchOptions&);
