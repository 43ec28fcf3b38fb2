#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/training/checkpoint/reader.hpp>
#include <annulus/training/run/trainer.hpp>

#include "training/dump/recorder.hpp"
#include "training/run/report.hpp"
#include "training/run/state/learner.hpp"

namespace annulus::training {

/// The optimizer step whose tensors go to a file, if one was asked for.
class Dump {
 public:
  explicit Dump(DumpRequest request) : request_(std::move(request)) {}

  /// For a run that makes the optimizer steps `first` to `last`. Throws Error where that step does not come
  /// or, with `writes` (rank 0), where its file cannot be written: before the first step rather than after
  /// hours.
  void check(std::int64_t first, std::int64_t last, bool writes);

  bool is_of(std::int64_t step) const { return !request_.file.empty() && step == request_.step; }

  /// Makes the step with a recorder that writes the file. Collective.
  /// `progress`: of the step before; `sequences`: that this one reads.
  StepResult record(comm::Communicator& world, const checkpoint::Progress& progress, std::int64_t sequences,
                    const ResolvedRun& run, const Learner& learner,
                    const std::function<StepResult(dump::Recorder&)>& update) const;

 private:
  DumpRequest request_;
};

}  // namespace annulus::training
