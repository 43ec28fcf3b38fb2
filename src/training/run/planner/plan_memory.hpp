#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include <annulus/cluster/topology/topology.hpp>
#include <annulus/prediction/simulator/cluster.hpp>
#include <annulus/prediction/step/update_memory.hpp>
#include <annulus/training/run/config.hpp>

#include "prediction/step/update_time.hpp"
#include "training/run/planner/memory_planner.hpp"

namespace annulus::training {

/// A machine that need not be there.
struct PlannedMachine {
  Topology topology;             ///< ranks of the run, and the nodes they sit on
  bool on_gpu = true;            ///< each rank on a GPU of its own
  std::int64_t gpu_memory = 0;   ///< bytes of a GPU; 0: without bound
  std::int64_t host_memory = 0;  ///< bytes of a node; 0: without bound
  simulator::Cluster cluster;
  std::string rates;  ///< whose they are, for those who read the plan
};

/// What an optimizer step takes with some values of memory.*, by the rank that needs most.
struct PlannedPolicy {
  Config::Memory memory;
  std::string outline;  ///< "selective, chunks of 4096"
  prediction::UpdateMemory bytes;
  prediction::UpdateTime time;
  int rank = 0;                     ///< of a context-parallel group: the one that needs most
  std::int64_t missing_device = 0;  ///< bytes of a GPU that are missing; 0 or less: it fits
  std::int64_t missing_host = 0;    ///< bytes of a node's memory that are missing
  std::int64_t missing() const { return std::max(missing_device, missing_host); }
  bool fits() const { return missing() <= 0; }
};

struct MemoryPlan {
  Config config;  ///< with its vocabulary
  /// Bytes of a GPU beside arrays: of libraries (estimated_library_bytes), and what auto leaves free
  /// (spare_gpu_bytes); 0 where the configuration says what is taken.
  std::int64_t libraries = 0, spare = 0;
  std::string schedule, layout;  ///< chosen where the configuration says auto
  PlannedPolicy configured;      ///< of the configuration; where it says auto, what that takes
  std::string reason;            ///< why, where it says auto
  std::vector<PlannedPolicy>
      policies;            ///< every policy with and without chunks and offload, the fastest first
  double step_tokens = 0;  ///< of an optimizer step
  double step_flops = 0;   ///< of the model in it (docs/formats/metrics.md)
};

/// Bytes of a GPU that CUDA, cuBLAS and NCCL take beside arrays of Annulus, estimated for a rank of the
/// largest node: 4.75 GiB for up to two ranks, and 0.5 GiB for each further one that it exchanges with, those
/// of its node and one of every other node (docs/memory.md tells where the numbers come from). A run with
/// memory.recompute = 'auto' measures them.
std::int64_t estimated_library_bytes(const Topology& topology);

/// Bytes of a GPU of `total` bytes that memory.recompute = 'auto' leaves free beside libraries and predicted
/// arrays: for gaps in the pool, the largest gradient that comes and goes inside of a step (of one unit, with
/// parallel.zero), and 1 % for the rest; 3 % at most.
std::int64_t spare_gpu_bytes(const Config& config, std::int64_t total);

/// Predicts every policy of the configuration on `machine`. Reads no data; where the mask follows documents
/// a sequence is taken as one document, which costs most. Throws Error naming the key, also where the
/// vocabulary is that of the data.
MemoryPlan plan_memory(const Config& config, const PlannedMachine& machine);

/// What plan_memory asks for the ranks of `machine`. Throws Error as it does.
MemoryPlanner planner_of(const Config& config, const PlannedMachine& machine);

/// Memory of one policy, without its time. `taken`: bytes of a GPU beside arrays.
PlannedPolicy planned_memory(MemoryPlanner& planner, const PlannedMachine& machine, std::int64_t taken,
                             const Config::Memory& memory);

/// The configuration's memory.*, of which every policy is to be tried.
Config::Memory open_memory(const Config& config);

/// {category: bytes, "total": bytes}
nlohmann::json peaks_json(const MemoryBytes& peaks, std::int64_t total);
/// The field predicted_peak_bytes of docs/formats/metrics.md.
nlohmann::json peaks_json(const prediction::UpdateMemory& memory);
/// [{"moment", "device": {category: bytes}, "host": {…}}], as in memory.json of a run.
nlohmann::json moments_json(const std::vector<prediction::MomentMemory>& moments);

/// "141GB", "80 GiB", "512MiB", or bytes. Throws Error naming `field` when it is none of them.
std::int64_t parse_bytes(const std::string& text, const std::string& field);

}  // namespace annulus::training
