#include "distributed/plan_activity.hpp"

#include <fmt/format.h>

#include <chrono>
#include <utility>

namespace annulus::distributed {

PlanActivity::PlanActivity(comm::Watchdog* watchdog, std::shared_ptr<const PlanText> text,
                           comm::Watchdog::Timeout timeout)
    : text_(std::move(text)),
      since_(comm::Watchdog::Clock::now()),
      completed_(text_->program().exchanges.size()),
      activity_(
          watchdog, [this](const comm::Watchdog::Wait* wait) { return describe(wait); }, timeout,
          [this] { return note(); }) {}

void PlanActivity::enter(int step, Phase phase, int exchange) {
  const std::lock_guard lock(mutex_);
  step_ = step;
  phase_ = phase;
  exchange_ = exchange;
  since_ = comm::Watchdog::Clock::now();
}

void PlanActivity::completed(int exchange) {
  const std::lock_guard lock(mutex_);
  completed_[static_cast<std::size_t>(exchange)] = true;
}

std::string PlanActivity::describe(const comm::Watchdog::Wait* wait) const {
  const std::lock_guard lock(mutex_);
  const std::string text = text_->where(step_);
  if (exchange_ >= 0 && wait != nullptr) return text + text_->wait(exchange_, completed_, *wait);
  const char* doing = phase_ == Phase::computes  ? "computes"
                      : phase_ == Phase::posts   ? "posts transfers"
                      : phase_ == Phase::accepts ? "takes in what has arrived"
                                                 : "has what it waited for";
  const std::chrono::duration<double> time = comm::Watchdog::Clock::now() - since_;
  return text + fmt::format("{} since {:.1f} s", doing, time.count()) +
         (wait == nullptr ? "" : ", " + wait->to_string());
}

comm::Watchdog::Describe PlanActivity::note() const {
  const std::lock_guard lock(mutex_);
  return [text = text_, step = step_, number = exchange_](const comm::Watchdog::Wait* wait) {
    if (number < 0 || wait == nullptr) return text->where(step) + "has posted transfers";
    const auto& exchanges = text->program().exchanges;
    std::vector<bool> completed(exchanges.size());
    const auto posted = static_cast<std::size_t>(number);
    for (std::size_t e = 0; e < posted; ++e) completed[e] = exchanges[e].channel == exchanges[posted].channel;
    return text->where(step) + text->wait(number, completed, *wait);
  };
}

}  // namespace annulus::distributed
