#include "attention/instantiate.hpp"
#include "attention/portable/instantiate.hpp"

ANNULUS_ATTENTION_SPACES(ANNULUS_ATTENTION_PORTABLE, float)
