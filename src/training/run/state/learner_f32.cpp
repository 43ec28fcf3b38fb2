#include "base/kokkos/instantiate.hpp"
#include "training/run/state/learner_on.hpp"

namespace annulus::training {

#define ANNULUS_INSTANTIATE(Exec)                                                                          \
  template std::unique_ptr<Learner> make_learner_on<Exec, float>(comm::Communicator&, comm::Communicator&, \
                                                                 const ResolvedRun&, const SequencePlans&, \
                                                                 const SequencePlans*);
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::training
