#pragma once

#include <cstdint>
#include <optional>

#include <annulus/attention/sparsity/options.hpp>
#include <annulus/base/dtype.hpp>
#include <annulus/cluster/topology/topology.hpp>
#include <annulus/prediction/step/update_memory.hpp>
#include <annulus/training/model/config.hpp>

#include "training/model/model_arrays.hpp"
#include "training/parameter_sharding/flat_ranges.hpp"
#include "training/parameter_sharding/state_arrays.hpp"

/// What an optimizer step of a run takes, memory and time, from the formulas of the modules that do it. No
/// run need be there, nor the ranks or GPUs of it.
namespace annulus::prediction {

/// What all ranks of a run have alike.
struct Setting {
  model::Config model;
  DType type = DType::bf16;  ///< of weights and activations
  bool on_gpu = true;
  Topology topology;        ///< of all ranks
  std::int64_t tokens = 0;  ///< of a sequence
  int sequences = 1;        ///< of a pass
  std::int64_t passes = 1;  ///< of an optimizer step
  std::int64_t sets = 1;    ///< of data, whose losses are told apart where there are several
  model::ActivationOptions activations;
  std::optional<sparsity::PatternOptions> sparsity = std::nullopt;  ///< of the layers that select pairs
  int sparse_layers = 0;                                            ///< layers that select pairs
  bool keeps_columns = false;  ///< K and V of their columns, for the backward pass (sparsity::SelectionShape)
  bool packed = false;         ///< sequences have documents
  parameter_sharding::StateLayout state;
  parameter_sharding::Updates updates = {};
  std::int64_t snapshot_bytes = 0;  ///< of the host: from which checkpoints are written
  /// Tokens of a sequence of validation, where it needs a model of its own; 0: none, or the one that trains.
  std::int64_t validation_tokens = 0;
};

/// The first `ranks` ranks of `all`, as every group of so many sits on its nodes.
Topology first_ranks(const Topology& all, int ranks);

/// What differs from rank to rank.
struct RankShare {
  model::PassRows rows;
  std::int64_t exchange_bytes = 0;  ///< executor::exchange_memory
  std::int64_t staging_bytes = 0;   ///< of the host: executor::staging_memory, of training and validation
  /// sparsity::table_memory, of training and validation; without selections tables are some thousandths of
  /// all, and left out.
  std::int64_t table_bytes = 0;
  std::int64_t data_bytes = 0;      ///< of the host: sequences that were read
  std::int64_t document_bytes = 0;  ///< executor::document_memory, of all masks and sequences of a pass
  /// What validation takes where it needs a model of its own.
  struct Validation {
    std::int64_t rows = 0, exchange_bytes = 0, document_bytes = 0;
  } validation = {};
};

/// What arrays of Annulus take on a rank: adds up the tables from which they are allocated. Lists by which
/// the optimizer and the norm of gradients work, some thousandths of all, are in none; libraries come on top
/// (docs/memory.md).
UpdateMemory update_memory(const Setting& setting, const RankShare& share);

}  // namespace annulus::prediction
