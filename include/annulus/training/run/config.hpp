#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/training/model/config.hpp>
#include <annulus/training/optimizer/options.hpp>

namespace annulus::training {

/// What stands for "choose for me" in memory.recompute.
inline constexpr std::string_view recompute_auto = "auto";

/// Everything a training run is told. Read from TOML; docs/formats/configuration.md explains each key, and
/// `annulus-train --print-config` prints the table that this file's implementation is driven by.
struct Config {
  struct Run {
    std::string folder = "runs/train";
    std::string device = "auto";
    std::int64_t seed = 1;
    /// Seconds that a rank may wait for others at a time; 0: for ever. Long: ranks may well be slow (a step
    /// of a plan over a million tokens takes minutes on a CPU), and ending a sound run costs more than
    /// finding a dead one later. Lost processes are noticed by the launcher, much sooner.
    std::int64_t stall_timeout = 1800;
    /// Seconds from a signal to the end of the run; 0: any number. Where the optimizer step under way would
    /// not end in time, the state before it is saved.
    std::int64_t stop_within = 0;
    double peak_tflops = 0;   ///< of the device of one rank, for MFU; 0: unknown
    bool tensorboard = true;  ///< write event files for TensorBoard beside metrics.jsonl
  } run;

  std::string model_from;  ///< model.from: a folder of weights to start from (WeightSource); empty: none
  model::Config model;     ///< vocabulary 0: that of the data
  std::int64_t model_positions = 0;  ///< model.positions: see ModelDescription::positions

  /// A set of data.sets.
  struct DataSet {
    std::string name;
    std::vector<std::string> shards;  ///< files or folders of token shards
    double weight = 1;                ///< relative to those of the other sets; a multiple of 10⁻⁶

    bool operator==(const DataSet&) const = default;
  };

  struct Data {
    std::vector<std::string> shards;  ///< files or folders of token shards; or `sets`
    std::vector<DataSet> sets;        ///< what sequences are drawn from by weight; or `shards`
    std::int64_t sequence_length = 1024;
    std::string packing = "stream";  ///< see data::Filling: "stream" or "best-fit"
    std::int64_t seed = 1;
    bool shuffle = true;
    bool verify = true;
    std::vector<std::string> validation;  ///< files or folders of token shards, each as PATH or NAME=PATH
    std::int64_t validation_length = 0;   ///< 0: sequence_length
  } data;
  /// The files or folders of data.shards or, one set behind the other, of data.sets.
  std::vector<std::string> training_shards() const;

  /// An entry of data.validation; without a name it is 'validation'.
  struct ValidationShards {
    std::string name, path;
  };
  /// Takes the entries apart. Throws Error naming the key where a name or a path is empty.
  std::vector<ValidationShards> validation_shards() const;
  /// Tokens of one sequence of validation; 0 where there is none.
  std::int64_t validation_length() const;

  struct Attention {
    std::string schedule = "ring";  ///< "auto": chosen when the run starts (simulator::choose)
    std::string layout = "zigzag";  ///< "auto" as for the schedule
    std::string cluster;            ///< file that auto chooses for; empty: the default cluster
    std::string mask = "causal";
    std::string kernel = "automatic";
    bool deterministic = true;  ///< see attention::KernelOptions::deterministic
    bool overlap = true;        ///< see executor::Settings::overlap
    bool see_targets = false;   ///< masks may show a token the later ones: for measuring alone
    std::string sparsity;       ///< sparsity::PatternOptions as text; empty: all pairs of the mask
  } attention;

  struct Sparsity {
    std::int64_t dense_updates = 0;         ///< optimizer steps, the first ones, that take all pairs
    std::vector<std::string> dense_layers;  ///< layers that always do: "0", "4-7"
    bool keep_columns = false;              ///< K and V of verticals, from the forward to the backward pass
    std::int64_t audit_every = 0;      ///< optimizer steps from one audit of attention to the next; 0: none
    std::int64_t audit_queries = 256;  ///< of a sequence, which an audit looks at; 0: all
  } sparsity;
  /// Tells of each layer whether attention.sparsity is for it: of causal layers but those of
  /// sparsity.dense_layers. Throws Error naming the key.
  std::vector<bool> sparse_layers() const;
  /// Share of its mask's pairs that each layer attends to, as it is predicted (sparsity::predicted_density).
  /// Sequences have documents that start there.
  std::vector<double> predicted_densities(std::span<const std::int64_t> document_starts) const;

  struct Parallel {
    int context = 0;                      ///< ranks of a context-parallel group; 0: all
    int zero = 0;                         ///< ZeRO's stage; 1 to 3: see parameter_sharding::Stage
    int shard = 0;                        ///< ranks that share one copy of what zero shards; 0: all
    std::string sums = "rank-order";      ///< of gradients over ranks: see comm::Sums
    int ranks_per_node = 0;               ///< 0: what the machine says
    std::string transport = "automatic";  ///< see comm::Transport
    bool copy_engines = true;             ///< see comm::NcclOptions::copy_engines
    bool nvlink_multicast = false;
    int max_ctas = 0;             ///< see comm::NcclOptions::max_ctas
    bool mixed_hardware = false;  ///< GPU models, CPU instruction sets and kernels may differ between ranks
  } parallel;

  struct Memory {
    std::vector<std::string> recompute = {"none"};  ///< of each layer, or one for all
    double store_fraction =
        0.5;  ///< of the positions, the later ones: sequence-selective keeps their attention
    int layers_without_recompute = 0;  ///< the last so many keep everything, whatever `recompute` says
    double offload_activations = 0;    ///< share of the layers that compute something again, or of all
    std::int64_t chunk_rows = 0;       ///< 0: all rows at once
    std::int64_t lm_head_rows = 0;     ///< see model::ActivationOptions::lm_head_rows
    bool offload_optimizer = false;    ///< see optimizer::MasterOptions::offload

    bool operator==(const Memory&) const = default;
  } memory;
  /// memory.recompute = 'auto': chosen when the run starts (docs/memory.md).
  bool chooses_recompute() const;
  /// What memory.* says of activations, which is chosen by then. Throws Error naming the key.
  model::ActivationOptions activations() const;

  struct Train : optimizer::AdamWOptions {
    std::string optimizer = "adamw";  ///< or "muon": of the matrices of layers, AdamW of the rest
    double momentum = 0.95;           ///< Muon's
    std::vector<std::string> decay = {"matrices",
                                      "lm_head"};  ///< model::TensorKind, that weight decay shrinks
    std::int64_t steps = 100;                      ///< 0: train.tokens or train.epochs says
    std::int64_t tokens = 0;                       ///< 0: train.steps or train.epochs says
    double epochs = 0;                             ///< 0: train.steps or train.tokens says
    /// No key: what these come to, once a run knows its data and ranks; 0 before.
    std::int64_t total_steps = 0;
    std::int64_t micro_batches = 1;
    int sequences_per_pass = 1;
    std::int64_t ramp_start = 0, ramp_increment = 0;  ///< sequences of an optimizer step; see BatchSchedule
    std::int64_t ramp_sequences = 0;                  ///< 0: all steps read as many
    std::string dtype = "f32";
    double lr = 3e-4, min_lr = 3e-5;
    std::int64_t warmup_steps = 10;
    std::string schedule = "cosine";  ///< optimizer::LearningRateSchedule::Curve
    std::int64_t decay_steps = 0;     ///< of wsd
    std::int64_t schedule_steps = 0;  ///< 0: steps of the run's first start, which its checkpoints keep
    double clip_norm = 1.0;
    std::int64_t skip_non_finite = 0;  ///< optimizer steps in a row; 0: the first such step ends the run
    std::int64_t log_every = 10;
    std::int64_t parts_every = 0;          ///< steps whose time is measured by part; 0: none
    std::int64_t check_replicas = 100;     ///< steps; 0: at the start and before checkpoints only
    std::int64_t validate_every = 100;     ///< steps; 0: behind the last one only
    std::int64_t validate_sequences = 64;  ///< of each set at most, spread over it; 0: all

    /// Forward and backward passes of the model in one optimizer step. Throws Error when sequences_per_pass
    /// does not divide micro_batches.
    std::int64_t passes() const;
  } train;

  struct Checkpoint {
    std::int64_t every = 100;  ///< steps; 0: at the end and on signals only
    std::int64_t keep = 2;
    std::int64_t keep_every = 0;  ///< steps of which the checkpoints stay for ever; 0: none
  } checkpoint;

  /// Reads a TOML file, then `overrides` ("section.key=value", the value as in TOML, quotes of strings
  /// optional), then what the model of model.from says. Throws Error naming file, line and key for what is
  /// unknown (with the nearest right key), of the wrong type, out of range or inconsistent, and for keys that
  /// contradict that model.
  static Config load(const std::filesystem::path& file, std::span<const std::string> overrides = {});

  /// Reads from text; `origin` stands for the file's name in errors.
  static Config parse(std::string_view text, std::string_view origin,
                      std::span<const std::string> overrides = {});

  /// The configuration that a checkpoint keeps, which another version may have written: keys that it lacks
  /// take their defaults. Keys that this version does not know are warnings in the log under run, data, train
  /// and checkpoint, and an Error naming `origin` and the key elsewhere, where they may change what is
  /// computed. Whether the keys fit together was checked when it was written.
  static Config parse_stored(std::string_view text, std::string_view origin);

  /// All keys with their values as TOML that load reads back to an equal configuration; `explain` adds the
  /// meanings.
  std::string to_toml(bool explain = false) const;

  /// Throws Error naming keys and remedy. Called by load.
  void check() const;

  std::chrono::milliseconds stall_timeout() const { return std::chrono::seconds(run.stall_timeout); }
  /// The timeout of waits while rank 0 reads or writes a checkpoint: an hour at least.
  std::chrono::milliseconds file_stall_timeout() const;
  /// Optimizer steps of the run; 0 where train.tokens or train.epochs says and the data are not known yet.
  std::int64_t steps() const { return train.total_steps > 0 ? train.total_steps : train.steps; }
  /// Optimizer steps from the first one to where the learning rate reaches train.min_lr, or steps(); 0 where
  /// steps() is.
  std::int64_t schedule_steps() const { return train.schedule_steps > 0 ? train.schedule_steps : steps(); }
  optimizer::LearningRateSchedule learning_rate() const;
  bool uses_muon() const { return train.optimizer == "muon"; }
  /// train.decay. Throws Error naming the key.
  std::vector<model::TensorKind> decaying() const;
};

/// A key on which two configurations disagree, with both values as TOML.
struct Difference {
  std::string key, before, after;
};

/// How a run goes on from a checkpoint.
enum class Continuation : std::uint8_t {
  same_run,  ///< in the folder of the run: it must end as if it had not been interrupted
  branch     ///< in a new folder: the model and the order of the data stay, the recipe may change
};

/// Keys that differ although `continuation` needs them equal. Folders, numbers of steps to make, log and
/// save, device, parallelism, schedule, layout and kernel may always change.
std::vector<Difference> incompatible(const Config& before, const Config& after, Continuation continuation);

}  // namespace annulus::training
