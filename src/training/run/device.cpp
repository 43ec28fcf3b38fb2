#include <annulus/training/run/trainer.hpp>

#include <annulus/attention/comm/transport.hpp>
#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "training/run/config/agreement.hpp"

namespace annulus::training {

bool computes_on_gpu(const Config& config) {
  const std::string& device = config.run.device;
  require(has_device || device != "gpu",
          "run.device = 'gpu', but this program was built for CPUs alone: use the build of the preset cuda "
          "(docs/gpu.md), or set run.device to auto or cpu");
  return has_device && device != "cpu";
}

std::unique_ptr<comm::Communicator> connect(const comm::MpiEnvironment& mpi, const Config& config) {
  mpi.set_stall_timeout(config.stall_timeout());
  // Before ranks take different ways to each other: over MPI, whatever the transport is to be.
  comm::Facts facts = comm::program_facts();
  facts.add(config_facts(config));
  comm::require_agreement(*mpi.world(1), facts);
  auto transport = comm::parse_transport(config.parallel.transport, "parallel.transport =");
  if (!computes_on_gpu(config)) {
    require(transport != comm::Transport::nccl,
            "parallel.transport = 'nccl' carries memory of GPUs, but this run computes on the CPU "
            "(run.device = '{}'): use automatic or mpi",
            config.run.device);
    transport = comm::Transport::mpi;
  }
  const comm::NcclOptions nccl{.max_ctas = config.parallel.max_ctas,
                               .copy_engines = config.parallel.copy_engines,
                               .nvlink_multicast = config.parallel.nvlink_multicast};
  return comm::connect(mpi, transport, config.parallel.ranks_per_node, nccl);
}

}  // namespace annulus::training
