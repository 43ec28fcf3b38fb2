// Reading a checkpoint: which tensors it has, and their values, of which each block is compared with its
// checksum. No MPI; any number of ranks may have written it.
//   checkpoint RUN-FOLDER/checkpoints
#include <fmt/format.h>

#include <cmath>
#include <exception>
#include <span>

#include <annulus/training.hpp>

using namespace annulus;

static void show(const char* folder) {
  // The newest one that is whole; checkpoint::Checkpoint(path) opens a certain one.
  const auto found = checkpoint::newest_good(folder);
  require(found.has_value(), "{} holds no checkpoint", folder);
  const checkpoint::Progress& progress = found->progress();
  fmt::print("{}, by {}, after {} steps\n", found->path().string(), found->creator(), progress.step);
  const training::Config config = training::Config::parse_stored(progress.config, folder);
  fmt::print("{} layers of width {}\n", config.model.layers, config.model.hidden);

  for (const checkpoint::StoredTensor& tensor : found->tensors()) {
    fmt::print("{:40}", tensor.name);
    for (const checkpoint::Buffer buffer : checkpoint::buffers) {  // the weights and AdamW's two moments
      double squares = 0;
      found->read(buffer, tensor.name, 0, tensor.elements(),
                  [&](std::int64_t, std::span<const float> values) {
                    for (const float value : values) squares += double(value) * value;  // piece by piece
                  });
      fmt::print("  {:.3e}", std::sqrt(squares / double(tensor.elements())));
    }
    fmt::print("\n");
  }
}

int main(int argc, char** argv) {
  try {
    require(argc == 2, "call it with the folder of a run's checkpoints");
    show(argv[1]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
