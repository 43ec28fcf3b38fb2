#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/comm/mpi.hpp>
#include <annulus/base/kokkos/memory_use.hpp>
#include <annulus/prediction/step/update_memory.hpp>
#include <annulus/training/run/config.hpp>

namespace annulus::training {

/// What a run does with checkpoints that are there when it starts.
struct ResumePolicy {
  enum class Kind : std::uint8_t {
    automatic,  ///< goes on from the newest good checkpoint of run.folder, starts anew when there is none
    never,      ///< starts anew; an Error when run.folder holds a run
    file,       ///< goes on from `checkpoint`
  } kind = Kind::automatic;
  std::filesystem::path checkpoint;

  /// Reads "auto", "never" or a path.
  static ResumePolicy parse(const std::string& text);
};

/// Which optimizer step's tensors go to a file (docs/debugging.md).
struct DumpRequest {
  std::filesystem::path file;  ///< empty: none
  std::int64_t step = 0;       ///< number of the optimizer step, from 1; 0: the first that the run makes
};

/// Peaks since the start of the process, in bytes.
struct PeakMemory {
  MemoryUse host, device;     ///< what arrays of Annulus took
  std::int64_t resident = 0;  ///< of the process on the host, from the operating system
  /// What the pool had taken from the GPU at the end of a step: arrays of Annulus and what lies idle between
  /// them.
  std::int64_t device_pool = 0;
  /// What else of the GPU was taken at the end of a step: by CUDA, NCCL and cuBLAS for this process, and by
  /// other processes.
  std::int64_t device_libraries = 0;
};

/// The field `peak_memory_bytes` of docs/formats/metrics.md.
nlohmann::json to_json(const PeakMemory& peaks);

/// Loss on a set of data.validation.
struct ValidationLoss {
  /// Loss of the tokens with fewer than `up_to` tokens of their document before them in the sequence, but no
  /// fewer than the bucket before says.
  struct Bucket {
    std::int64_t up_to = 0;
    double loss = 0;  ///< nats per token
    std::int64_t targets = 0;
  };
  std::string set;
  double loss = 0;           ///< nats per token, the mean of all tokens with a target
  std::int64_t targets = 0;  ///< tokens with a target
  std::vector<Bucket> by_position;
};

/// The field `validation` of docs/formats/metrics.md.
nlohmann::json to_json(const std::vector<ValidationLoss>& losses);

/// How a run went; the same on every rank but for last_checkpoint, which rank 0 knows.
struct Outcome {
  std::int64_t first_step = 0;  ///< optimizer steps that had been made when it started
  std::int64_t last_step = 0;  ///< optimizer steps made when it ended; first_step when nothing was left to do
  std::int64_t steps = 0;      ///< optimizer steps that it is to make in all (Config::steps)
  std::string schedule, layout;  ///< of attention; where the configuration says auto, the chosen ones
  double first_loss = 0,
         last_loss = 0;  ///< nats per token, means over (up to) the first and last ten steps of this run
  std::vector<ValidationLoss> validation;  ///< the last one of this run
  double tokens_per_second = 0;   ///< all ranks together, over the optimizer steps of this run but the first
  double seconds = 0;             ///< of these steps, without saving and logging in between
  double tflops = 0;              ///< 10¹² operations of the model a second and rank, over the same steps
  std::string device, transport;  ///< where it computed and in which type; what carried data between ranks
  int stop_signal = 0;            ///< 0: ran to its end
  int failed_saves = 0;
  bool last_save_failed = false;  ///< the state at the end is on no disk
  std::string last_checkpoint;    ///< the newest good one, empty when there is none
  PeakMemory memory;              ///< of the rank that needed most, category by category
  prediction::UpdateMemory
      predicted_memory;  ///< before the run; its peaks are those of the rank that needs most
};

/// What run.device stands for in this build. Throws Error when it asks for a GPU of a build without.
bool computes_on_gpu(const Config& config);

/// The ranks of the job, as the section parallel says, and none of them to wait longer than
/// run.stall_timeout. Collective. Throws Error naming the key; on all ranks when program or configuration are
/// not the same.
std::unique_ptr<comm::Communicator> connect(const comm::MpiEnvironment& mpi, const Config& config);

/// Trains as the configuration says, on the device and in the type that it names: a collective call of all
/// ranks of `world` (see connect), which splits into context-parallel groups of consecutive ranks; the groups
/// are data-parallel. Writes into run.folder: config.toml, metrics.jsonl, train.log, checkpoints/. Throws
/// Error for what is wrong with configuration, data or checkpoint, and when loss or gradients stop being
/// finite more often than train.skip_non_finite allows (naming the step and the lowest rank that saw it;
/// parameters are not changed and no checkpoint touched). Before the first step the ranks make sure that
/// their configurations are alike, and at times that they hold equal parameters and moments
/// (docs/running.md); else Error, the same on all of them.
Outcome train(comm::Communicator& world, Config config, const ResumePolicy& resume,
              const DumpRequest& dump = {});

}  // namespace annulus::training
