#pragma once

#include <memory>
#include <span>
#include <string>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/executor/attention.hpp>

#include "attention/comm/background.hpp"
#include "training/data/dataset.hpp"

namespace annulus::training {

/// What the readers of a context-parallel group tell one another of the plans that they prepare ahead, over a
/// communicator of the host of their own: whether all have the same, and whether what they would run fits
/// together. So nothing of a new cut is left to be told inside an optimizer step.
class PlanAgreement {
 public:
  /// The agreement of the readers of `context`; null on all ranks where `context` is for one thread alone (an
  /// MPI without MPI_THREAD_MULTIPLE): plans are then agreed on where they are taken. Collective.
  static std::shared_ptr<PlanAgreement> among(comm::Communicator& context);

  explicit PlanAgreement(std::unique_ptr<comm::Communicator> twin) : readers_(std::move(twin)) {}

  /// executor::agree of the readers; each calls it for the same sequences in the same order. Throws Error on
  /// all of them, also when one has left. Nobody may call it again then.
  void with_others(std::span<const std::shared_ptr<const executor::PreparedPlans>> plans);

  /// How a reader leaves; keeps `agreement`.
  static data::RankRows::Leave leave(const std::shared_ptr<PlanAgreement>& agreement);

 private:
  void tell_others(const std::string& why);

  comm::BackgroundCommunicator readers_;
  bool over_ = false;  // the readers no longer meet; of the reader's thread
};

}  // namespace annulus::training
