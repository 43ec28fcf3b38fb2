#include "training/run/passes/plan_agreement.hpp"

#include <exception>

#include "attention/comm/agreement.hpp"
#include "attention/executor/prepared_plans.hpp"

namespace annulus::training {

std::shared_ptr<PlanAgreement> PlanAgreement::among(comm::Communicator& context) {
  std::unique_ptr<comm::Communicator> twin = context.for_another_thread();
  return twin ? std::make_shared<PlanAgreement>(std::move(twin)) : nullptr;
}

void PlanAgreement::with_others(std::span<const std::shared_ptr<const executor::PreparedPlans>> plans) {
  try {
    comm::throw_together(readers_, {});  // another one may tell instead that it leaves
    executor::agree(readers_, plans);
  } catch (...) {
    over_ = true;
    throw;
  }
}

void PlanAgreement::tell_others(const std::string& why) {
  if (over_) return;
  over_ = true;
  try {
    comm::throw_together(readers_, why);
  } catch (const std::exception&) {
    // What is told comes back to this reader, too; and who is gone need not hear it.
  }
}

data::RankRows::Leave PlanAgreement::leave(const std::shared_ptr<PlanAgreement>& agreement) {
  if (!agreement) return {};
  return {.tell = [agreement](const std::string& why) { agreement->tell_others(why); },
          .at_once = [agreement] { agreement->readers_.give_up(); }};
}

}  // namespace annulus::training
