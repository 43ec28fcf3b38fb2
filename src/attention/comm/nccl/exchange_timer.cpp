#include "attention/comm/nccl/exchange_timer.hpp"

#include <algorithm>
#include <iterator>

namespace annulus::comm {

void ExchangeTimer::Direction::add(const Pending& message) {
  peer = peer == none || peer == message.world_peer ? message.world_peer : several;
  bytes += message.bytes;
}

void ExchangeTimer::begin(void* stream, const std::vector<Pending>& messages) {
  if (open_) spare_.splice(spare_.end(), under_way_, std::prev(under_way_.end()));  // an exception ended it
  collect();
  Direction sends, receives;
  for (const Pending& message : messages) {
    if (message.channel >= 0) (message.receive ? receives : sends).add(message);
  }
  open_ = sends.peer != Direction::several && receives.peer != Direction::several &&
          std::max(sends.bytes, receives.bytes) >= MessageTimes::min_bytes;
  if (!open_) return;
  if (spare_.empty()) spare_.emplace_back();
  under_way_.splice(under_way_.end(), spare_, spare_.begin());
  TimedExchange& exchange = under_way_.back();
  exchange.sends = sends;
  exchange.receives = receives;
  exchange.begin.record(stream);
}

void ExchangeTimer::end(void* stream) {
  if (open_) under_way_.back().end.record(stream);
  open_ = false;
}

void ExchangeTimer::collect() {
  for (auto exchange = under_way_.begin(); exchange != under_way_.end();) {
    const auto next = std::next(exchange);
    if (exchange->end.done()) {
      const double seconds = Event::seconds_between(exchange->begin, exchange->end);
      times_.add(exchange->sends.peer, false, exchange->sends.bytes, seconds);
      times_.add(exchange->receives.peer, true, exchange->receives.bytes, seconds);
      spare_.splice(spare_.end(), under_way_, exchange);
    }
    exchange = next;
  }
}

}  // namespace annulus::comm
