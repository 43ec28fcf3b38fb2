#include "base/kokkos/instantiate.hpp"
#include "training/run/state/learner_on.hpp"

namespace annulus::training {

ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_COMPILE_TYPED_FUNCTION, bfloat16, make_learner_on)

}  // namespace annulus::training
