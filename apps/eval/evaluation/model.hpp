#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/training/run/config.hpp>

#include "training/run/passes/evaluator.hpp"
#include "training/run/passes/sequence_plans.hpp"
#include "training/run/state/initial_weights/weight_source.hpp"

namespace annulus::eval {

/// All weights of a model in this rank's memory, in the type and on the device of a configuration. Models of
/// other lengths, schedules or selections may share them.
class EvaluationWeights {
 public:
  virtual ~EvaluationWeights() = default;
};

/// Reads the weights on every rank; without `source` they are drawn from run.seed, as those of a run that
/// starts. Collective. Throws Error on all ranks where one cannot read, or they have read different weights.
std::shared_ptr<const EvaluationWeights> load_weights(comm::Communicator& world,
                                                      const training::Config& config,
                                                      const training::WeightSource* source);

/// Weights that are loaded when they are first wanted, behind all checks, and then stay.
class LazyWeights {
 public:
  /// `source` outlives this.
  explicit LazyWeights(const training::WeightSource& source) : source_(source) {}

  const training::WeightSource& source() const { return source_; }
  /// load_weights, the first time.
  std::shared_ptr<const EvaluationWeights> get(comm::Communicator& world, const training::Config& config) {
    if (loaded_ == nullptr) loaded_ = load_weights(world, config, &source_);
    return loaded_;
  }

 private:
  const training::WeightSource& source_;
  std::shared_ptr<const EvaluationWeights> loaded_;
};

/// A model for forward passes alone, over sequences of one length that the ranks of a group share. Every rank
/// holds all weights, and the activations of one layer at a time.
class EvaluationModel : public training::Evaluator {
 public:
  /// Device, type and attention kernel.
  virtual std::string device() const = 0;
  /// Device, type, attention kernel, schedule and layout; for the log.
  std::string description() const;
  virtual const training::SequencePlans& plans() const = 0;
  /// Elements of the weights.
  virtual std::int64_t parameters() const = 0;

  /// Computes the logits (vocabulary) of the token behind `prefix`, the beginning of a sequence, by a pass
  /// over the whole length. The rank of the group that is returned gets them in `logits`; on others these are
  /// of no meaning. Collective. Throws Error where the prefix is empty or longer than a sequence, and where a
  /// pass takes several sequences.
  virtual int logits(std::span<const std::int32_t> prefix, std::span<float> logits) = 0;
};

/// `weights` were loaded for the same model, device and type. `context` is this rank's group in `world`; it
/// outlives the model. Schedule and layout that stand as `auto` are chosen for sequences whose documents
/// start at `documents`. Collective. Throws Error naming the key that does not fit.
std::unique_ptr<EvaluationModel> make_evaluation_model(comm::Communicator& world, comm::Communicator& context,
                                                       const training::Config& config,
                                                       std::shared_ptr<const EvaluationWeights> weights,
                                                       std::vector<std::int64_t> documents = {0});

}  // namespace annulus::eval
