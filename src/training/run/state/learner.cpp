#include "training/run/state/learner.hpp"

#include <annulus/base/float16.hpp>
#include <annulus/base/kokkos/tensor.hpp>
#include <annulus/training/run/device.hpp>

namespace annulus::training {

// Instantiated for the spaces and types below, in learner_f32.cpp and learner_bf16.cpp.
template <class Exec, class T>
std::unique_ptr<Learner> make_learner_on(comm::Communicator& world, comm::Communicator& context,
                                         const Config& config, const SequencePlans& plans);

namespace {

template <class Exec>
std::unique_ptr<Learner> make_on(comm::Communicator& world, comm::Communicator& context, const Config& config,
                                 const SequencePlans& plans) {
  return config.train.dtype == "bf16" ? make_learner_on<Exec, bfloat16>(world, context, config, plans)
                                      : make_learner_on<Exec, float>(world, context, config, plans);
}

}  // namespace

std::unique_ptr<Learner> make_learner(comm::Communicator& world, comm::Communicator& context,
                                      const Config& config, const SequencePlans& plans) {
  return device_of(config) == Device::gpu ? make_on<DeviceExec>(world, context, config, plans)
                                          : make_on<HostExec>(world, context, config, plans);
}

}  // namespace annulus::training
