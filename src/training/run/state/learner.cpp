#include "training/run/state/learner.hpp"

#include <annulus/base/dtype.hpp>
#include <annulus/base/kokkos/tensor.hpp>

namespace annulus::training {

// Instantiated for the spaces and types below, in learner_f32.cpp and learner_bf16.cpp.
template <class Exec, class T>
std::unique_ptr<Learner> make_learner_on(comm::Communicator& world, comm::Communicator& context,
                                         const ResolvedRun& run, const SequencePlans& plans,
                                         const SequencePlans* validation);

namespace {

template <class Exec>
std::unique_ptr<Learner> make_on(comm::Communicator& world, comm::Communicator& context,
                                 const ResolvedRun& run, const SequencePlans& plans,
                                 const SequencePlans* validation) {
  return run.step.type == DType::bf16
             ? make_learner_on<Exec, bfloat16>(world, context, run, plans, validation)
             : make_learner_on<Exec, float>(world, context, run, plans, validation);
}

}  // namespace

std::unique_ptr<Learner> make_learner(comm::Communicator& world, comm::Communicator& context,
                                      const ResolvedRun& run, const SequencePlans& plans,
                                      const SequencePlans* validation) {
  return run.step.on_gpu ? make_on<DeviceExec>(world, context, run, plans, validation)
                         : make_on<HostExec>(world, context, run, plans, validation);
}

}  // namespace annulus::training
