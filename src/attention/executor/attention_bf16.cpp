#include "attention/executor/attention_impl.hpp"

ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_COMPILE_TYPED_CLASS, annulus::bfloat16, annulus::executor::Attention)
