#include "prediction/measurement/links.hpp"

#include <fmt/format.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <array>
#include <cstddef>

#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/comm/agreement.hpp"
#include "attention/comm/gather_lists.hpp"
#include "base/kokkos/memory/memory.hpp"

namespace annulus::measurement {

using simulator::LinkClass;

namespace {

using Exec = Kokkos::DefaultExecutionSpace;
using Bytes = Array1<std::byte, Exec>;

constexpr int factor = 4;  // from one size to the next

/// Messages between two buffers, of which sizes up to the longest use the beginning.
class Messages {
 public:
  Messages(comm::Communicator& communicator, std::int64_t max_bytes)
      : communicator_(communicator),
        queue_(Exec()),
        sent_(buffer("annulus::measurement::sent", max_bytes)),
        received_(buffer("annulus::measurement::received", max_bytes)) {}

  Sample time(LinkClass link, Pairing pattern, std::int64_t bytes, const Sampling& sampling) {
    const int rank = communicator_.rank();
    const auto with = peers(communicator_.topology(), link, pattern, rank);
    if (!with) return of_message(pattern, sample(communicator_, sampling, {}));
    const auto n = static_cast<std::size_t>(bytes);
    const std::array send = {comm::Send{sent_.view().data(), n, with->to}};
    const std::array receive = {comm::Receive{received_.view().data(), n, with->from}};
    const bool begins = rank < with->to;
    return of_message(pattern, sample(communicator_, sampling, [&](int iterations) {
                        for (int i = 0; i < iterations; ++i) {
                          if (pattern != Pairing::one_way) {
                            communicator_.exchange(queue_, send, receive).wait();
                          } else if (begins) {
                            communicator_.exchange(queue_, send, {}).wait();
                            communicator_.exchange(queue_, {}, receive).wait();
                          } else {
                            communicator_.exchange(queue_, {}, receive).wait();
                            communicator_.exchange(queue_, send, {}).wait();
                          }
                        }
                        // Where messages are work of a stream, nobody has waited for them yet.
                        if (!queue_.is_host()) Exec().fence("annulus::measure: messages have arrived");
                      }));
  }

 private:
  static Owned<Bytes> buffer(const char* label, std::int64_t bytes) {
    // Zeroed: all its pages are there before anything is timed.
    auto owned = Owned<Bytes>::zeroed(Exec(), MemoryCategory::communication, label, bytes);
    Exec().fence("annulus::measure: buffers are there");
    return owned;
  }

  /// There and back are two messages.
  static Sample of_message(Pairing pattern, Sample s) {
    if (pattern == Pairing::one_way) {
      for (double* seconds : {&s.median, &s.min, &s.max}) *seconds /= 2;
    }
    return s;
  }

  comm::Communicator& communicator_;
  Queue queue_;
  Owned<Bytes> sent_, received_;
};

/// The longest size of which every rank has memory for two buffers.
std::int64_t longest_that_fits(comm::Communicator& communicator, const LinkOptions& options) {
  const auto hosts = host_names(communicator);
  const auto here = std::ranges::count(hosts, hosts[communicator.rank()]);
  const std::int64_t free = options.memory > 0 ? options.memory : available_host_memory();
  // The transport and the rest of the machine need some, too.
  const std::int64_t most = communicator.all_reduce_value(free / (4 * here), comm::ReduceOp::min);
  std::int64_t bytes = options.min_bytes;
  while (bytes * factor <= std::min(options.max_bytes, most)) bytes *= factor;
  return bytes;
}

}  // namespace

void LinkOptions::check() const {
  constexpr std::int64_t longest = std::int64_t{1} << 40;
  require(min_bytes >= 1 && min_bytes <= longest, "--min-bytes is {}: give a size from 1 to {}", min_bytes,
          longest);
  require(max_bytes >= min_bytes && max_bytes <= longest,
          "--max-bytes is {}: give a size from --min-bytes, {}, to {}", max_bytes, min_bytes, longest);
  require(sampling.repetitions >= 1, "--repetitions is {}: it must be at least 1", sampling.repetitions);
  require(sampling.seconds > 0, "--seconds is {}: it must be positive", sampling.seconds);
}

LinkOptions quick_links() {
  LinkOptions options;
  options.min_bytes = std::int64_t{1} << 12;
  options.max_bytes = std::int64_t{1} << 24;
  options.sampling = {.repetitions = 5, .seconds = 0.03};
  options.patterns = {Pairing::both_ways, Pairing::all, Pairing::ring};
  return options;
}

std::vector<MessageTiming> LinkMeasurement::timings(LinkClass link, Pairing pattern) const {
  std::vector<MessageTiming> list;
  for (const LinkPoint& point : points) {
    if (point.link == link && point.pattern == pattern)
      list.push_back({static_cast<double>(point.bytes), point.seconds.median});
  }
  return list;
}

LinkMeasurement measure_links(comm::Communicator& communicator, const LinkOptions& options) {
  options.check();
  LinkMeasurement result;
  if (communicator.size() == 1) return result;
  const std::int64_t longest = longest_that_fits(communicator, options);
  if (longest * factor <= options.max_bytes)
    result.notes.push_back(
        fmt::format("messages of more than {} bytes do not fit in memory and were left out", longest));
  Messages messages(communicator, longest);
  for (const LinkClass link : {LinkClass::intra_node, LinkClass::inter_node}) {
    for (const Pairing pattern : options.patterns) {
      if (!applies(communicator.topology(), link, pattern)) continue;
      for (std::int64_t bytes = options.min_bytes; bytes <= longest; bytes *= factor) {
        const bool first = bytes == options.min_bytes;
        if (!first && result.points.back().seconds.median * factor > options.sampling.seconds) {
          result.notes.push_back(
              fmt::format("{} {}: messages of {} bytes and more take longer than {} s and were left out",
                          simulator::name_of(link), name_of(pattern), bytes, options.sampling.seconds));
          break;
        }
        result.points.push_back(
            {link, pattern, bytes, messages.time(link, pattern, bytes, options.sampling)});
      }
      if (result.timings(link, pattern).size() == 1)
        result.notes.push_back(
            fmt::format("{} {}: one size of message tells no latency from bandwidth, and the latency is "
                        "taken as 0: raise "
                        "--seconds or --max-bytes",
                        simulator::name_of(link), name_of(pattern)));
    }
  }
  return result;
}

std::vector<std::string> host_names(comm::Communicator& communicator) {
  return comm::gather_lists(communicator, comm::machine_name());
}

}  // namespace annulus::measurement
