// Checkpoints (docs/formats/checkpoint.md): as they come, and again with a last line that fits, which no
// change at random would hit.
#include <Kokkos_Core.hpp>

#include <annulus/io/crc32.hpp>
#include <annulus/train/checkpoint.hpp>

#include "memory_file.hpp"
#include "train/checkpoint_seal.hpp"

namespace {

using namespace annulus;

/// The model that the checkpoints of the corpus are of.
model::ParameterMap tiny_model() {
  model::LlamaConfig shape;
  shape.vocabulary = 3;
  shape.hidden = 4;
  shape.layers = 1;
  shape.heads = 1;
  shape.kv_heads = 1;
  shape.head_dim = 16;
  shape.ffn = 4;
  return model::ParameterMap(shape);
}

void load(const std::string& path) {
  using Host = Kokkos::DefaultHostExecutionSpace;
  static const Kokkos::ScopeGuard kokkos;
  static const model::ParameterMap map = tiny_model();
  static const Array1<float, Host> values("values", static_cast<std::size_t>(map.size()));
  const train::Checkpoint checkpoint(path);
  const train::FlatBuffer buffer(Host(), values);
  checkpoint.load(map, {buffer, buffer, buffer});
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::MemoryFile file({data, size});
  fuzz::accepts(file.path(), [&] { load(file.path()); });
  train::seal_checkpoint(file.path());
  fuzz::accepts(file.path(), [&] { load(file.path()); });
  return 0;
}
