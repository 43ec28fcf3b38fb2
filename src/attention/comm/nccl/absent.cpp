#include <annulus/attention/comm/transport.hpp>
#include <annulus/base/error.hpp>

namespace annulus::comm {

std::unique_ptr<Communicator> make_nccl(std::unique_ptr<Communicator>, const NcclOptions&) {
  fail(
      "this Annulus was built without NCCL: use the transport mpi, "
      "or build the preset cuda where nccl.h is found");
}

bool has_nccl() {
  return false;
}

}  // namespace annulus::comm
