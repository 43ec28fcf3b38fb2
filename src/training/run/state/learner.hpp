#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/kernels/local.hpp>
#include <annulus/prediction/step/update_memory.hpp>

#include "training/data/dataset.hpp"
#include "training/dump/recorder.hpp"
#include "training/model/parameters.hpp"
#include "training/run/config/resolve.hpp"
#include "training/run/passes/evaluator.hpp"
#include "training/run/passes/sequence_plans.hpp"
#include "training/run/report.hpp"
#include "training/run/state/model_state.hpp"

namespace annulus::training {

/// A model with its optimizer on the device and in the type of a run. What a run does
/// around it (data, checkpoints, reports) knows neither.
class Learner {
 public:
  virtual ~Learner() = default;

  virtual const model::ParameterMap& map() const = 0;
  virtual const SequencePlans& plans() const = 0;
  /// Device, type and attention kernel, for the log.
  virtual std::string description() const = 0;
  /// The kernel of the local attention, that which `automatic` stands for.
  virtual attention::Kernel kernel() const = 0;
  /// A warning that the kernel of the local attention is far slower than others on the device, and why; empty
  /// where it is not.
  virtual std::string warning() const = 0;

  virtual ModelState& state() = 0;

  /// One optimizer step at `learning_rate` from these sequences, the micro-batches of this rank (whole
  /// passes, at most those of the run), as number `step` (from 1). Collective. When loss or gradient is not
  /// finite on any rank, parameters and moments stay as they are on all: with `may_skip`
  /// StepResult::not_finite names the rank that made it and the tensor, else every rank throws Error with
  /// that text. What all ranks share and what this one has seen of the step; the device is idle on return.
  /// `recorder`, unless null, gets parameters, tokens, what the model computes, and gradients
  /// (docs/formats/tensor-dump.md); `memory`, unless null, what this process holds at the moments of the step
  /// (MemoryTrace).
  virtual StepResult update(std::int64_t step, double learning_rate,
                            std::span<const data::Sequence> sequences, bool may_skip,
                            dump::Recorder* recorder, std::vector<prediction::MomentMemory>* memory) = 0;

  /// Evaluates with the weights behind `step` optimizer steps, and attention as that step has it, in the
  /// memory of activations: the learner updates nothing while the evaluator lives. Collective.
  virtual std::unique_ptr<Evaluator> evaluator(std::int64_t step) = 0;
};

/// `context` is this rank's context-parallel group in `world`, and `plans` are this rank's, as those of
/// `validation` are, where its sequences have another length; both communicators outlive it. Collective.
std::unique_ptr<Learner> make_learner(comm::Communicator& world, comm::Communicator& context,
                                      const ResolvedRun& run, const SequencePlans& plans,
                                      const SequencePlans* validation = nullptr);

}  // namespace annulus::training
