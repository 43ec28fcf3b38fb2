// Checkpoints of versions 1 and 2, which are files in HDF5 (docs/formats/checkpoint.md): as they come, and
// again with a last line that fits, which no change at random would hit.
#include <annulus/checkpoint/reader.hpp>

#include "checkpoint/seal.hpp"
#include "memory_file.hpp"

namespace {

using namespace annulus;

void load(const std::string& path) {
  checkpoint::Checkpoint(path).verify();
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::MemoryFile file({data, size});
  fuzz::accepts(file.path(), [&] { load(file.path()); });
  checkpoint::seal_checkpoint(file.path());
  fuzz::accepts(file.path(), [&] { load(file.path()); });
  return 0;
}
