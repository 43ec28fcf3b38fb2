#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace annulus::report {

inline constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

/// Loss on a set of data.validation behind an optimizer step.
struct Validation {
  double loss = 0;
  std::map<std::int64_t, double> by_position;  ///< by the bucket's `up_to`
};

/// What metrics.jsonl says of one optimizer step (docs/formats/metrics.md).
struct StepRecord {
  std::int64_t step = 0, tokens = 0;
  double loss = 0, gradient_norm = 0;  ///< `unknown` where they were not finite
  double learning_rate = 0;
  double tokens_per_second = 0, seconds = 0;
  double waiting = 0;       ///< seconds of the step, for transfers of attention and for shards
  double mfu = unknown;     ///< `unknown` where run.peak_tflops is not stated
  double density = 1;       ///< share of the unmasked pairs that layers attended to
  double recall = unknown;  ///< of an audit of selected pairs; `unknown` in steps without one
  std::map<std::string, Validation> validation = {};  ///< by the set's name, where there was one
  std::map<std::string, double> parts = {};  ///< seconds, where they were measured (train.parts_every)
};

/// A layer in an audit of attention (docs/formats/attention.md): numbers of each head.
struct AuditedLayer {
  int layer = 0;
  bool selects = false;
  std::vector<double> density = {}, recall = {}, entropy = {}, gradient = {}, gradient_recall = {};
  /// Where weights and gradients of a head lie, (blocks of queries, blocks of keys). Of the first and the
  /// last audit of a run alone.
  struct Pattern {
    int head = 0;
    std::int64_t block = 0;  ///< positions
    std::vector<std::vector<double>> weights = {}, gradients = {};
  } pattern = {};
};

/// An audit of attention, a line of attention.jsonl.
struct AuditRecord {
  std::int64_t step = 0;
  std::vector<AuditedLayer> layers = {};
};

/// A category of memory at the end of a run, in bytes of the rank that needs most.
struct MemoryRow {
  std::string category;
  std::int64_t measured = 0, predicted = 0;
};

/// A run folder, as a report sees it.
struct RunRecord {
  std::string name;  ///< the folder's
  std::vector<StepRecord> steps;
  std::vector<AuditRecord> audits;
  std::vector<MemoryRow> memory;  ///< of the device, or of the host where there is none
  bool memory_on_device = false;
  std::vector<std::int64_t> starts;                  ///< optimizer steps after which a process went on
  std::vector<std::int64_t> checkpoints;             ///< optimizer steps of checkpoints that are still there
  std::map<std::string, std::string> configuration;  ///< values by "section.key", as TOML
  nlohmann::json summary;                            ///< null while the run goes on
};

/// Throws Error naming file, line and what is wrong. A run that goes on may be read.
RunRecord read_run(const std::filesystem::path& folder);

}  // namespace annulus::report
