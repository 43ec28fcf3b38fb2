#include "distributed/plan_watch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>

namespace annulus::distributed {

namespace {

/// "k, v of shard 2, rows [0, 512), heads [0, 4)"; pieces that differ in their tensor alone are joined.
std::string names_of(const std::vector<Message>& messages, const std::vector<std::size_t>& which) {
  std::string text;
  for (std::size_t i = 0; i < which.size(); ++i) {
    const plan::Piece& p = messages[which[i]].piece;
    if (i > 0) text += ", ";
    text += plan::name_of(p.tensor);
    plan::Piece as_next = p;
    if (i + 1 < which.size()) as_next.tensor = messages[which[i + 1]].piece.tensor;
    if (i + 1 == which.size() || as_next != messages[which[i + 1]].piece)
      text += fmt::format(" of shard {}, rows [{}, {}), heads [{}, {})", p.owner, p.rows.begin, p.rows.end,
                          p.heads.begin, p.heads.end);
  }
  return text;
}

}  // namespace

PlanWatch::PlanWatch(const comm::Communicator& communicator, const Program& program, comm::Watch::Limit limit)
    : communicator_(communicator),
      program_(program),
      since_(comm::Watch::Clock::now()),
      completed_(program.exchanges.size()),
      doing_(
          communicator.watch(), [this](const comm::Watch::Wait* wait) { return tell(wait); }, limit) {}

void PlanWatch::enter(int step, Phase phase, int exchange) {
  const std::lock_guard lock(mutex_);
  step_ = step;
  phase_ = phase;
  exchange_ = exchange;
  since_ = comm::Watch::Clock::now();
}

void PlanWatch::completed(int exchange) {
  const std::lock_guard lock(mutex_);
  completed_[static_cast<std::size_t>(exchange)] = true;
}

std::string PlanWatch::tell(const comm::Watch::Wait* wait) const {
  const std::lock_guard lock(mutex_);
  std::string text = fmt::format("{} {}, in step {} of 0 to {}, ", program_.plan.schedule,
                                 plan::name_of(program_.pass), step_, program_.plan.steps - 1);
  if (phase_ == Phase::waits && wait != nullptr) return text + tell_wait(*wait);
  const char* doing = phase_ == Phase::computes  ? "computes"
                      : phase_ == Phase::posts   ? "posts transfers"
                      : phase_ == Phase::accepts ? "takes in what has arrived"
                                                 : "has what it waited for";
  const std::chrono::duration<double> time = comm::Watch::Clock::now() - since_;
  text += fmt::format("{} since {:.1f} s", doing, time.count());
  return wait == nullptr ? text : text + ", " + wait->to_string();
}

std::string PlanWatch::tell_wait(const comm::Watch::Wait& wait) const {
  const Exchange& exchange = program_.exchanges[static_cast<std::size_t>(exchange_)];
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
    text += (count == 1 ? " " : "; ") + tell_peer(peer, lack);
  }
  if (lacks.size() > named) text += fmt::format("; and for {} more ranks", lacks.size() - named);
  return text;
}

std::string PlanWatch::tell_peer(int peer, const Lack& lack) const {
  const Exchange& exchange = program_.exchanges[static_cast<std::size_t>(exchange_)];
  const std::string name = name_of_rank(peer);
  const ByChannel posted = posting_steps(peer);
  std::array<std::size_t, plan::channel_count> seen{};  // messages of the peer so far
  int last = -1, posts = -1;
  for (std::size_t e = 0; e < program_.exchanges.size(); ++e) {
    const auto channel = static_cast<std::size_t>(program_.exchanges[e].channel);
    const bool waited_for = static_cast<int>(e) == exchange_;
    for (std::size_t i = 0; i < program_.exchanges[e].receives.size(); ++i) {
      if (program_.exchanges[e].receives[i].peer != peer) continue;
      const std::size_t number = seen[channel]++;
      if (number >= posted[channel].size()) continue;  // no valid plan comes here
      const int step = posted[channel][number];
      const bool lacks = waited_for && std::count(lack.receives.begin(), lack.receives.end(), i) > 0;
      if (lacks && posts < 0) posts = step;
      if (completed_[e] || (waited_for && !lacks)) last = std::max(last, step);
    }
  }
  std::string text;
  if (!lack.receives.empty()) {
    text = fmt::format("for {} from {}", names_of(exchange.receives, lack.receives), name);
    if (posts >= 0) text += fmt::format(", which sends it in step {}", posts);
  }
  if (!lack.sends.empty()) {
    if (!text.empty()) text += ", and ";
    text += fmt::format("until {} takes {}", name, names_of(exchange.sends, lack.sends));
  }
  if (last >= 0) return text + fmt::format("; {} was last heard of in step {}", name, last);
  const bool sends =
      std::any_of(posted.begin(), posted.end(), [](const auto& steps) { return !steps.empty(); });
  return sends ? text + fmt::format("; nothing has come from {} in this pass", name) : text;
}

PlanWatch::ByChannel PlanWatch::posting_steps(int peer) const {
  ByChannel steps;
  for (int s = 0; s < program_.plan.steps; ++s)
    for (const plan::Transfer& send : program_.plan.step(peer, s).sends)
      if (send.peer == program_.rank) steps[static_cast<std::size_t>(send.channel)].push_back(s);
  return steps;
}

std::string PlanWatch::name_of_rank(int rank) const {
  const int job = communicator_.job_rank(rank);
  return job == rank ? fmt::format("rank {}", rank) : fmt::format("rank {} (here rank {})", job, rank);
}

}  // namespace annulus::distributed
