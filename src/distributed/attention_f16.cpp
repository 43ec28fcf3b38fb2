#include "distributed/attention_impl.hpp"

ANNULUS_INSTANTIATE_ATTENTION(annulus::float16)
