#include "attention/comm/message_times.hpp"

namespace annulus::comm {

void MessageTimes::add(int peer, bool receives, std::size_t bytes, double seconds) {
  if (bytes < min_bytes || seconds <= 0) return;
  const std::lock_guard lock(mutex_);
  MessageTime& fastest = fastest_[{peer, receives}];
  const std::int64_t messages = fastest.messages + 1;
  const MessageTime message{peer, receives, messages, static_cast<std::int64_t>(bytes), seconds};
  if (messages == 1 || message.rate() > fastest.rate()) fastest = message;
  fastest.messages = messages;
}

std::vector<MessageTime> MessageTimes::take() {
  std::vector<MessageTime> times;
  const std::lock_guard lock(mutex_);
  for (const auto& [link, fastest] : fastest_) times.push_back(fastest);
  fastest_.clear();
  return times;
}

}  // namespace annulus::comm
