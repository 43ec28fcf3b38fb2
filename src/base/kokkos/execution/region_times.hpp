#pragma once

#include <deque>
#include <string_view>
#include <vector>

#include <annulus/base/kokkos/queue.hpp>

#include "base/kokkos/execution/event.hpp"
#include "base/kokkos/execution/region.hpp"

namespace annulus {

/// Where the time of a stretch of work goes, by the regions (Region) in which this thread enqueues it. The
/// stretch is cut where a region begins or ends, and each piece counts for the innermost region that is a
/// part, so that the parts add up to the whole. On a GPU these are times of the stream: what a part waits
/// for, transfers of other streams or the host, counts for it.
class RegionTimes {
 public:
  /// The number of the part to which a region of this name belongs inside of part `around`: that, too, for
  /// regions that are no parts.
  using PartOf = int (*)(int around, std::string_view region);

  /// This thread's regions count from now on, what is outside of them for part 0.
  RegionTimes(const Queue& queue, int parts, PartOf part_of);
  /// Ends the counting; this thread's regions count again for the object for which they counted before.
  ~RegionTimes();
  RegionTimes(const RegionTimes&) = delete;
  RegionTimes& operator=(const RegionTimes&) = delete;

  /// Seconds of each part up to now; waits for the queue.
  std::vector<double> seconds();

 private:
  friend void detail::region_begins(std::string_view name);
  friend void detail::region_ends();

  struct Point {
    Event event{Event::Timing::on};
    int part = 0;  ///< of what follows
  };
  void mark(int part);
  /// Adds up what the queue has passed; all, waiting, where `all`.
  void collect(bool all);

  Queue queue_;
  PartOf part_of_;
  std::vector<int> open_ = {0};  ///< parts of the open regions, from the outermost on
  std::deque<Point> points_;     ///< in the order of the queue
  std::vector<Event> spare_;
  std::vector<double> seconds_;
  RegionTimes* before_;
};

}  // namespace annulus
