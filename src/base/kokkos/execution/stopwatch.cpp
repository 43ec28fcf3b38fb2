#include "base/kokkos/execution/stopwatch.hpp"

#include <utility>

namespace annulus::detail {

Event StreamIntervals::take() {
  if (spare_.empty()) return Event(Event::Timing::on);
  Event event = std::move(spare_.back());
  spare_.pop_back();
  return event;
}

void StreamIntervals::begin(void* stream) {
  collect(false);
  Pair& pair = open_.emplace_back(Pair{take(), take()});
  pair.begin.record(stream);
}

void StreamIntervals::end(void* stream) {
  open_.back().end.record(stream);
  open_.back().ended = true;
}

void StreamIntervals::collect(bool all) {
  while (!open_.empty() && open_.front().ended) {
    Pair& pair = open_.front();
    if (all) pair.end.wait();
    if (!pair.end.done()) return;
    seconds_ += Event::seconds_between(pair.begin, pair.end);
    spare_.push_back(std::move(pair.begin));
    spare_.push_back(std::move(pair.end));
    open_.pop_front();
  }
}

double StreamIntervals::seconds() {
  collect(true);
  return seconds_;
}

void StreamIntervals::reset() {
  collect(true);
  seconds_ = 0;
}

}  // namespace annulus::detail
