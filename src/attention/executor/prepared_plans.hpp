#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/executor/attention.hpp>
#include <annulus/base/dtype.hpp>

#include "attention/executor/proof/program.hpp"
#include "attention/executor/proof/proof.hpp"

namespace annulus::executor {

/// What the programs of a rank depend on beside their plans.
struct Preparation {
  int rank = 0, ranks = 1;
  DType dtype = DType::f32;  ///< of q, k, v and d_out
  Cutting cutting;
  Settings settings;
};

/// Plans resolved to programs, which this rank has proved by itself: all of Attention::set_plans that needs
/// no word with other ranks.
class PreparedPlans {
 public:
  /// Never throws Error: `problem` has it, so that all ranks are told.
  PreparedPlans(Plans plans, const Preparation& preparation);

  const Plans& plans() const { return plans_; }
  /// The programs of Plans::all(); incomplete where there is a problem, as `proofs` are.
  const std::vector<std::shared_ptr<const Program>>& programs() const { return programs_; }
  const std::vector<ProgramProof>& proofs() const { return proofs_; }
  /// What is wrong; empty: nothing.
  const std::string& problem() const { return problem_; }

 private:
  Plans plans_;
  std::vector<std::shared_ptr<const Program>> programs_;
  std::vector<ProgramProof> proofs_;
  std::string problem_;
};

inline constexpr const char* no_plans = "distributed attention was given no plans";

/// All of set_plans that ranks tell one another: whether all have these plans, and whether their programs fit
/// together (prove_together). Collective, on any thread that has `communicator`, which needs no device.
/// Throws Error on all ranks: what a rank found wrong with its own, what differs, or what does not fit.
void agree(comm::Communicator& communicator, std::span<const std::shared_ptr<const PreparedPlans>> plans);

}  // namespace annulus::executor
