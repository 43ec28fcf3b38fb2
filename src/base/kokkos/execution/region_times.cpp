#include "base/kokkos/execution/region_times.hpp"

#include <cstddef>
#include <utility>

namespace annulus {

namespace {
thread_local RegionTimes* counting = nullptr;
}  // namespace

namespace detail {

void region_begins(std::string_view name) {
  if (counting == nullptr) return;
  const int around = counting->open_.back(), part = counting->part_of_(around, name);
  counting->open_.push_back(part);
  if (part != around) counting->mark(part);
}

void region_ends() {
  // A region that was open before the times began ends outside of all parts.
  if (counting == nullptr || counting->open_.size() == 1) return;
  const int part = counting->open_.back();
  counting->open_.pop_back();
  if (part != counting->open_.back()) counting->mark(counting->open_.back());
}

}  // namespace detail

RegionTimes::RegionTimes(const Queue& queue, int parts, PartOf part_of)
    : queue_(queue),
      part_of_(part_of),
      seconds_(static_cast<std::size_t>(parts)),
      before_(std::exchange(counting, this)) {
  mark(0);
}

RegionTimes::~RegionTimes() {
  counting = before_;
}

std::vector<double> RegionTimes::seconds() {
  mark(open_.back());
  collect(true);
  return seconds_;
}

void RegionTimes::mark(int part) {
  collect(false);
  Point& point = points_.emplace_back();
  if (!spare_.empty()) {
    point.event = std::move(spare_.back());
    spare_.pop_back();
  }
  point.part = part;
  point.event.record(queue_);
}

void RegionTimes::collect(bool all) {
  while (points_.size() > 1) {
    const Event& end = points_[1].event;
    if (all) end.wait();
    if (!end.done()) return;
    Point& begin = points_.front();
    seconds_[static_cast<std::size_t>(begin.part)] += Event::seconds_between(begin.event, end);
    spare_.push_back(std::move(begin.event));
    points_.pop_front();
  }
}

}  // namespace annulus
