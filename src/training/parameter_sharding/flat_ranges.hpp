#pragma once

#include <vector>

#include "training/model/parameters.hpp"
#include "training/optimizer/adamw.hpp"
#include "training/optimizer/clip.hpp"

/// What the optimizer and the clipper know of a model: ranges of its flat buffer.
namespace annulus::parameter_sharding {

/// Which tensors are updated how.
struct Updates {
  std::vector<model::TensorKind> decay = {model::TensorKind::matrix, model::TensorKind::lm_head};
  bool muon = false;  ///< the matrices of layers by Muon (MuonShards), the rest by AdamW
  double momentum = 0.95;

  bool decays(const model::Parameter& parameter) const;
  bool by_muon(const model::Parameter& parameter) const {
    return muon && parameter.kind == model::TensorKind::matrix;
  }
};

/// Which parameters AdamW updates, and which of them decay.
std::vector<optimizer::ParameterRange> update_ranges(const model::ParameterMap& map, const Updates& updates);

/// Which blocks the gradient norm is the sum of. Each unit begins a new one, so that shards of units have the
/// blocks of the whole, and with them the same bits of the norm.
struct UnitBlocks {
  std::vector<optimizer::NormRange> ranges;  ///< of each unit
  std::int64_t count = 0;                    ///< blocks of all units
};
UnitBlocks unit_blocks(const model::ParameterMap& map);

}  // namespace annulus::parameter_sharding
