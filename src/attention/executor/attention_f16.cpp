#include "attention/executor/attention_impl.hpp"

ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_INSTANTIATE_ATTENTION, annulus::float16)
