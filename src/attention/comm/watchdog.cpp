#include "attention/comm/watchdog.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "attention/comm/point_to_point.hpp"

namespace annulus::comm {

std::string Watchdog::Wait::to_string() const {
  std::string text = fmt::format("has waited {:.1f} s", seconds);
  constexpr std::size_t named = 4;
  for (std::size_t i = 0; i < std::min(named, pending.size()); ++i) {
    const Pending& p = pending[i];
    text += fmt::format("{} {} bytes {} rank {}",
                        i == 0      ? (p.receive ? " for" : " to send")
                        : p.receive ? ","
                                    : ", to send",
                        p.bytes, p.receive ? "from" : "to", p.world_peer);
    if (p.channel >= 0) text += " on " + channel_name(p.channel);
  }
  if (pending.size() > named) text += fmt::format(" and {} more", pending.size() - named);
  return text;
}

Watchdog::Scope::Scope(Watchdog* watchdog, bool waits, Describe describe, Messages messages,
                       std::optional<Timeout> timeout, Note note)
    : watchdog_(watchdog),
      waits_(waits),
      describe_(std::move(describe)),
      messages_(std::move(messages)),
      timeout_(timeout),
      note_(std::move(note)) {
  if (watchdog_ == nullptr) return;
  if (timeout_ && timeout_->count() > 0) watchdog_->start();
  const std::lock_guard lock(watchdog_->mutex_);
  since_ = Clock::now();
  watchdog_->scopes_.push_back(this);
}

Watchdog::Scope::~Scope() {
  if (watchdog_ == nullptr) return;
  const std::lock_guard lock(watchdog_->mutex_);
  auto& scopes = watchdog_->scopes_;
  // Nearly always the last one; another thread of the rank may have begun something since.
  scopes.erase(std::next(std::find(scopes.rbegin(), scopes.rend(), this)).base());
}

Watchdog::ActivityScope::ActivityScope(Watchdog* watchdog, const std::string& what,
                                       std::optional<Timeout> timeout)
    : ActivityScope(
          watchdog,
          [what](const Wait* wait) { return wait == nullptr ? what : what + ": " + wait->to_string(); },
          timeout) {}

void Watchdog::set_timeout(Timeout timeout) {
  {
    const std::lock_guard lock(mutex_);
    timeout_ = timeout;
  }
  if (timeout.count() > 0) start();
}

Watchdog::Timeout Watchdog::timeout() const {
  const std::lock_guard lock(mutex_);
  return timeout_before(scopes_.size());
}

Watchdog::Timeout Watchdog::timeout_before(std::size_t scope) const {
  while (scope-- > 0) {
    if (scopes_[scope]->timeout_) return *scopes_[scope]->timeout_;
  }
  return timeout_;
}

std::string Watchdog::describe() const {
  std::string text = describe_scopes();
  const std::lock_guard lock(background_mutex_);
  for (const Background* background : backgrounds_) {
    const std::string more = background->describe(Clock::now());
    if (!more.empty()) text = text.empty() ? more : text + "; its device: " + more;
  }
  return text.empty() ? "waits for nobody" : text;
}

std::string Watchdog::describe_scopes() const {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  const Scope* waiting = nullptr;
  const Scope* innermost = nullptr;
  bool inside_wait = false;
  for (const Scope* scope : scopes_) {
    if (!scope->waits_ || !inside_wait) (scope->waits_ ? waiting : innermost) = scope;
    inside_wait = scope->waits_;
  }
  std::optional<Wait> wait;
  if (waiting != nullptr) {
    wait.emplace();
    wait->seconds = in_seconds(now - waiting->since_);
    if (waiting->messages_) wait->pending = waiting->messages_();
  }
  std::string text;
  for (const Scope* scope : scopes_) {
    if (scope->waits_) continue;
    if (!text.empty()) text += ", ";
    text += scope->describe_(scope == innermost && wait ? &*wait : nullptr);
  }
  if (innermost == nullptr && wait) text = wait->to_string();
  return text;
}

Watchdog::Describe Watchdog::note() const {
  const std::lock_guard lock(mutex_);
  std::vector<Describe> all;
  for (const Scope* scope : scopes_) {
    if (!scope->waits_) all.push_back(scope->note_ ? scope->note_() : scope->describe_);
  }
  if (all.size() == 1) return all.front();
  return [all = std::move(all)](const Wait* wait) {
    if (all.empty()) return wait == nullptr ? std::string("waits for nobody") : wait->to_string();
    std::string text;
    for (std::size_t i = 0; i < all.size(); ++i)
      text += (i > 0 ? ", " : "") + all[i](i + 1 == all.size() ? wait : nullptr);
    return text;
  };
}

bool Watchdog::knows() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(scopes_.begin(), scopes_.end(), [](const Scope* scope) { return !scope->waits_; });
}

double Watchdog::longest_wait() const {
  const Clock::time_point now = Clock::now();
  double longest = 0;
  {
    const std::lock_guard lock(background_mutex_);
    for (const Background* background : backgrounds_)
      longest = std::max(longest, background->longest_wait(now));
  }
  const std::lock_guard lock(mutex_);
  for (const Scope* scope : scopes_)
    if (scope->waits_) longest = std::max(longest, Watchdog::in_seconds(now - scope->since_));
  return longest;
}

std::optional<Watchdog::Timeout> Watchdog::exceeded() const {
  const Clock::time_point now = Clock::now();
  {
    const std::lock_guard lock(background_mutex_);
    for (const Background* background : backgrounds_)
      if (const auto timeout = background->exceeded(now)) return timeout;
  }
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < scopes_.size(); ++i) {
    if (!scopes_[i]->waits_) continue;
    const Timeout timeout = timeout_before(i);
    if (timeout.count() > 0 && now - scopes_[i]->since_ > timeout) return timeout;
  }
  return std::nullopt;
}

void Watchdog::exclude_suspended_time(Clock::time_point from, Clock::time_point to) {
  {
    const std::lock_guard lock(background_mutex_);
    for (Background* background : backgrounds_) background->exclude_suspended_time(from, to);
  }
  const std::lock_guard lock(mutex_);
  for (Scope* scope : scopes_)
    if (scope->since_ <= from) scope->since_ += to - from;
}

void Watchdog::add(Background* background) {
  const std::lock_guard lock(background_mutex_);
  backgrounds_.push_back(background);
}

void Watchdog::remove(Background* background) {
  const std::lock_guard lock(background_mutex_);
  std::erase(backgrounds_, background);
}

std::string Watchdog::poll() {
  const std::lock_guard lock(background_mutex_);
  const Clock::time_point now = Clock::now();
  std::string failure;
  for (Background* background : backgrounds_) {
    std::string text = background->poll(now);
    if (failure.empty()) failure = std::move(text);
  }
  return failure;
}

void Watchdog::abort() noexcept {
  const std::lock_guard lock(background_mutex_);
  for (Background* background : backgrounds_) background->abort();
}

void Watchdog::start() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(started_, true)) return;
  }
  if (start_thread_) start_thread_();
}

}  // namespace annulus::comm
