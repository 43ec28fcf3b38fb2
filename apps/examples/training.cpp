// A tiny training run: text becomes token shards, and a LLaMA of one layer learns its bytes for 30 steps.
//   mpirun -n 2 training FOLDER-OF-TEXT RUN-FOLDER
#include <fmt/format.h>
#include <Kokkos_Core.hpp>

#include <exception>
#include <filesystem>

#include <annulus/training.hpp>

using namespace annulus;

// The keys of annulus-train (docs/formats/configuration.md); what is not named here has its default.
constexpr const char* recipe = R"(
[run]
device = "cpu"
[model]
layers = 1
hidden = 64
head_dim = 16
ffn = 128
[data]
sequence_length = 128
[train]
steps = 30
lr = 1e-2
)";

static void run(const comm::MpiEnvironment& mpi, const std::filesystem::path& text,
                const std::filesystem::path& folder) {
  training::Config config = training::Config::parse(recipe, "the recipe");
  config.run.folder = folder / "run";
  config.data.shards = {folder / "shards"};

  const auto ranks = training::connect(mpi, config);
  if (ranks->rank() == 0) {
    data::PackOptions options;
    options.inputs = {text};
    options.output = folder / "shards";
    options.tokenizer = data::make_byte_tokenizer();
    const data::PackSummary packed = data::pack(options);
    fmt::print("{} tokens, unigram entropy {:.2f}\n", packed.tokens, packed.unigram_entropy);
  }
  ranks->barrier();  // the others read what rank 0 has written

  // Goes on from the newest checkpoint of the folder, so a second call has nothing left to do.
  const training::Outcome outcome = training::train(*ranks, config, training::ResumePolicy{});
  if (ranks->rank() == 0)
    fmt::print("steps {} to {}: loss {:.2f}, then {:.2f}\n", outcome.first_step, outcome.last_step,
               outcome.first_loss, outcome.last_loss);
}

int main(int argc, char** argv) {
  const comm::MpiEnvironment mpi(argc, argv);
  try {
    require(argc == 3, "call it with a folder of text and a folder for the run");
    const Kokkos::ScopeGuard kokkos(kokkos_settings(mpi.ranks_sharing_cores()));
    run(mpi, argv[1], argv[2]);
  } catch (const std::exception& error) {
    mpi.abort(error.what());
  }
}
