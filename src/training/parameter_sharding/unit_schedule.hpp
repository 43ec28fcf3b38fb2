#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "training/model/pass_parts.hpp"
#include "training/parameter_sharding/state_arrays.hpp"

namespace annulus::parameter_sharding {

/// What happens to arrays of a unit.
struct UnitStep {
  enum class Kind : std::uint8_t {
    gather,          ///< weights: their memory, and their way there begins
    await,           ///< their way ends
    drop_weights,    ///< their memory goes
    begin_gradient,  ///< the memory of a gradient, which holds nothing yet
    hold,            ///< a gradient of UnitArrays::held begins
    start_sum,       ///< of a gradient over ranks
    complete_sum     ///< it is there, and the memory of the gradient goes
  };
  Kind kind;
  int unit;
};

/// The steps that calls of a model ask for. ShardedParameters carries them out, and unit_arrays takes down
/// which array lives from which call to which: what runs and what memory it needs have one source.
class UnitSchedule {
 public:
  UnitSchedule(const StateLayout& layout, int units)
      : layout_(layout), units_(static_cast<std::size_t>(units)) {}

  /// Steps around a call, in order; valid until the next call.
  std::span<const UnitStep> call(const model::UnitCall& call);
  /// Steps behind the last pass.
  std::span<const UnitStep> end();

 private:
  struct Unit {
    bool weights = false, gradient = false;
    int users = 0;  ///< of the weights
  };
  void add(UnitStep::Kind kind, int unit) { steps_.push_back({kind, unit}); }
  void gather(int unit);
  void complete();

  StateLayout layout_;
  std::vector<Unit> units_;
  int summed_ = -1;  ///< the unit whose gradient is on its way
  std::vector<UnitStep> steps_;
};

/// Arrays of units that begin and end inside of an optimizer step.
struct UnitArrays {
  /// Gradients that stay (held_gradients). With several passes those of the first one are there while the
  /// next one runs: they hold something from the start.
  ArrayTable held;
  /// Gathered weights, gradients of units, and what other ranks contribute to their sums. Sums of
  /// Stage::optimizer are made behind the last pass, one after the other.
  ArrayTable passing;
};
/// The arrays of the last of `passes` passes in an optimizer step. `contributions`: so many parts of a unit
/// come from other ranks for a sum.
UnitArrays unit_arrays(const model::Config& config, const StateLayout& layout, std::int64_t passes,
                       std::int64_t contributions = 0);

}  // namespace annulus::parameter_sharding
