#include "base/kokkos/instantiate.hpp"
#include "training/run/state/learner_on.hpp"

namespace annulus::training {

#define ANNULUS_INSTANTIATE(Exec) \
  template decltype(make_learner_on<Exec, float>) make_learner_on<Exec, float>;
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::training
