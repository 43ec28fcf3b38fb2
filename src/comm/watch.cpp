#include <annulus/comm/watch.hpp>

#include <fmt/format.h>

#include <algorithm>

#include "comm/point_to_point.hpp"

namespace annulus::comm {

std::string Watch::Wait::to_string() const {
  std::string text = fmt::format("has waited {:.1f} s", seconds);
  constexpr std::size_t named = 4;
  for (std::size_t i = 0; i < std::min(named, pending.size()); ++i) {
    const Pending& p = pending[i];
    text += fmt::format("{} {} bytes {} rank {}",
                        i == 0      ? (p.receive ? " for" : " to send")
                        : p.receive ? ","
                                    : ", to send",
                        p.bytes, p.receive ? "from" : "to", p.job_peer);
    if (p.channel >= 0) text += " on " + channel_name(p.channel);
  }
  if (pending.size() > named) text += fmt::format(" and {} more", pending.size() - named);
  return text;
}

Watch::Scope::Scope(Watch* watch, bool waits, Tell tell, Messages messages, std::optional<Limit> limit,
                    Note note)
    : watch_(watch),
      waits_(waits),
      tell_(std::move(tell)),
      messages_(std::move(messages)),
      limit_(limit),
      note_(std::move(note)) {
  if (watch_ == nullptr) return;
  if (limit_ && limit_->count() > 0) watch_->guard();
  const std::lock_guard lock(watch_->mutex_);
  since_ = Clock::now();
  watch_->scopes_.push_back(this);
}

Watch::Scope::~Scope() {
  if (watch_ == nullptr) return;
  const std::lock_guard lock(watch_->mutex_);
  auto& scopes = watch_->scopes_;
  // Nearly always the last one; another thread of the rank may have begun something since.
  scopes.erase(std::next(std::find(scopes.rbegin(), scopes.rend(), this)).base());
}

Watch::Doing::Doing(Watch* watch, const std::string& what, std::optional<Limit> limit)
    : Doing(
          watch,
          [what](const Wait* wait) { return wait == nullptr ? what : what + ": " + wait->to_string(); },
          limit) {}

void Watch::set_limit(Limit limit) {
  {
    const std::lock_guard lock(mutex_);
    limit_ = limit;
  }
  if (limit.count() > 0) guard();
}

Watch::Limit Watch::limit() const {
  const std::lock_guard lock(mutex_);
  return limit_before(scopes_.size());
}

Watch::Limit Watch::limit_before(std::size_t scope) const {
  while (scope-- > 0) {
    if (scopes_[scope]->limit_) return *scopes_[scope]->limit_;
  }
  return limit_;
}

std::string Watch::tell() const {
  std::string text = tell_scopes();
  const std::lock_guard lock(background_mutex_);
  for (const Background* background : backgrounds_) {
    const std::string more = background->tell(Clock::now());
    if (!more.empty()) text = text.empty() ? more : text + "; its device: " + more;
  }
  return text.empty() ? "waits for nobody" : text;
}

std::string Watch::tell_scopes() const {
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
    text += scope->tell_(scope == innermost && wait ? &*wait : nullptr);
  }
  if (innermost == nullptr && wait) text = wait->to_string();
  return text;
}

Watch::Tell Watch::note() const {
  const std::lock_guard lock(mutex_);
  std::vector<Tell> all;
  for (const Scope* scope : scopes_) {
    if (!scope->waits_) all.push_back(scope->note_ ? scope->note_() : scope->tell_);
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

bool Watch::knows() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(scopes_.begin(), scopes_.end(), [](const Scope* scope) { return !scope->waits_; });
}

double Watch::longest_wait() const {
  const Clock::time_point now = Clock::now();
  double longest = 0;
  {
    const std::lock_guard lock(background_mutex_);
    for (const Background* background : backgrounds_)
      longest = std::max(longest, background->longest_wait(now));
  }
  const std::lock_guard lock(mutex_);
  for (const Scope* scope : scopes_)
    if (scope->waits_) longest = std::max(longest, Watch::in_seconds(now - scope->since_));
  return longest;
}

std::optional<Watch::Limit> Watch::exceeded() const {
  const Clock::time_point now = Clock::now();
  {
    const std::lock_guard lock(background_mutex_);
    for (const Background* background : backgrounds_)
      if (const auto limit = background->exceeded(now)) return limit;
  }
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < scopes_.size(); ++i) {
    if (!scopes_[i]->waits_) continue;
    const Limit limit = limit_before(i);
    if (limit.count() > 0 && now - scopes_[i]->since_ > limit) return limit;
  }
  return std::nullopt;
}

void Watch::forgive(Clock::time_point from, Clock::time_point to) {
  {
    const std::lock_guard lock(background_mutex_);
    for (Background* background : backgrounds_) background->forgive(from, to);
  }
  const std::lock_guard lock(mutex_);
  for (Scope* scope : scopes_)
    if (scope->since_ <= from) scope->since_ += to - from;
}

void Watch::add(Background* background) {
  const std::lock_guard lock(background_mutex_);
  backgrounds_.push_back(background);
}

void Watch::remove(Background* background) {
  const std::lock_guard lock(background_mutex_);
  std::erase(backgrounds_, background);
}

std::string Watch::look() {
  const std::lock_guard lock(background_mutex_);
  const Clock::time_point now = Clock::now();
  std::string failure;
  for (Background* background : backgrounds_) {
    std::string text = background->look(now);
    if (failure.empty()) failure = std::move(text);
  }
  return failure;
}

void Watch::abort() noexcept {
  const std::lock_guard lock(background_mutex_);
  for (Background* background : backgrounds_) background->abort();
}

void Watch::guard() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(guarded_, true)) return;
  }
  if (guard_) guard_();
}

}  // namespace annulus::comm
