// Descriptions of nodes in hwloc's XML (docs/topology.md).
#include "cluster/machine/machine.hpp"
#include "fuzz.hpp"
#include "memory_file.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace annulus;
  const fuzz::MemoryFile file(data, size);
  fuzz::accepts(file.path(), [&] {
    const machine::Machine machine = machine::read_machine(file.path());
    fuzz::expect(!machine.host.empty(), "a name");
  });
  return 0;
}
