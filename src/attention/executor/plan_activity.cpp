#include "attention/executor/plan_activity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "attention/plan/text.hpp"

namespace annulus::executor {

namespace {

std::string names_of(const std::vector<ProgramMessage>& messages, const std::vector<std::size_t>& which) {
  std::vector<plan::TensorSlice> slices;
  for (const std::size_t i : which) slices.push_back(messages[i].slice);
  return plan::describe(slices);
}

}  // namespace

PlanText::PlanText(const comm::Communicator& communicator, std::shared_ptr<const Program> program)
    : program_(std::move(program)) {
  for (int rank = 0; rank < communicator.size(); ++rank)
    world_ranks_.push_back(communicator.world_rank(rank));
}

std::string PlanText::where(int step) const {
  return fmt::format("{} {}, in plan step {} of 0 to {}, ", program_->plan.schedule,
                     program_->plan.pass_text(), step, program_->plan.steps - 1);
}

std::string PlanText::wait(int number, const std::vector<bool>& completed,
                           const comm::Watchdog::Wait& wait) const {
  const Exchange& exchange = program_->exchanges[static_cast<std::size_t>(number)];
  std::map<int, Lack> lacks;  // by peer
  const auto lacks_receive = [&](std::size_t i) { lacks[exchange.receives[i].peer].receives.push_back(i); };
  const auto lacks_send = [&](std::size_t i) { lacks[exchange.sends[i].peer].sends.push_back(i); };
  for (const comm::Pending& p : wait.pending) p.receive ? lacks_receive(p.index) : lacks_send(p.index);
  if (wait.pending.empty()) {  // the transport does not know
    for (std::size_t i = 0; i < exchange.receives.size(); ++i) lacks_receive(i);
    for (std::size_t i = 0; i < exchange.sends.size(); ++i) lacks_send(i);
  }
  std::string text =
      fmt::format("has waited {:.1f} s on channel '{}'", wait.seconds, plan::name_of(exchange.channel));
  constexpr int named = 4;
  int count = 0;
  for (const auto& [peer, lack] : lacks) {
    if (count++ == named) break;
    text += (count == 1 ? " " : "; ") + describe_peer(number, completed, peer, lack);
  }
  if (lacks.size() > named) text += fmt::format("; and for {} more ranks", lacks.size() - named);
  return text;
}

std::string PlanText::describe_peer(int waited, const std::vector<bool>& completed, int peer,
                                    const Lack& lack) const {
  const Exchange& exchange = program_->exchanges[static_cast<std::size_t>(waited)];
  const std::string name = name_of_rank(peer);
  const ByChannel posted = posting_steps(peer);
  std::array<std::size_t, plan::channel_count> seen{};  // messages of the peer so far
  int last = -1, posts = -1;
  for (std::size_t e = 0; e < program_->exchanges.size(); ++e) {
    const auto channel = static_cast<std::size_t>(program_->exchanges[e].channel);
    const bool waited_for = static_cast<int>(e) == waited;
    for (std::size_t i = 0; i < program_->exchanges[e].receives.size(); ++i) {
      if (program_->exchanges[e].receives[i].peer != peer) continue;
      const std::size_t number = seen[channel]++;
      if (number >= posted[channel].size()) continue;  // no valid plan comes here
      const int step = posted[channel][number];
      const bool lacks = waited_for && std::count(lack.receives.begin(), lack.receives.end(), i) > 0;
      if (lacks && posts < 0) posts = step;
      if (completed[e] || (waited_for && !lacks)) last = std::max(last, step);
    }
  }
  std::string text;
  if (!lack.receives.empty()) {
    text = fmt::format("for {} from {}", names_of(exchange.receives, lack.receives), name);
    if (posts >= 0) text += fmt::format(", which sends it in plan step {}", posts);
  }
  if (!lack.sends.empty()) {
    if (!text.empty()) text += ", and ";
    text += fmt::format("until {} takes {}", name, names_of(exchange.sends, lack.sends));
  }
  if (last >= 0) return text + fmt::format("; {} was last heard of in plan step {}", name, last);
  const bool sends =
      std::any_of(posted.begin(), posted.end(), [](const auto& steps) { return !steps.empty(); });
  return sends ? text + fmt::format("; nothing has come from {} in this pass", name) : text;
}

PlanText::ByChannel PlanText::posting_steps(int peer) const {
  ByChannel steps;
  for (int s = 0; s < program_->plan.steps; ++s)
    for (const plan::Transfer& send : program_->plan.step(peer, s).sends)
      if (send.peer == program_->rank) steps[static_cast<std::size_t>(send.channel)].push_back(s);
  return steps;
}

std::string PlanText::name_of_rank(int rank) const {
  const int job = world_ranks_[static_cast<std::size_t>(rank)];
  return job == rank ? fmt::format("rank {}", rank) : fmt::format("rank {} (here rank {})", job, rank);
}

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

}  // namespace annulus::executor
