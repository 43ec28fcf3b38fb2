#include "prediction/emulator/links.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <queue>
#include <stop_token>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <annulus/base/error.hpp>

#include "prediction/simulator/network.hpp"
#include "prediction/simulator/side_run.hpp"

namespace annulus::emulator {

/// Times are seconds since construction. What is due at a time happens at that time for the network, however
/// late the thread wakes up: delays of the machine do not add up on the links.
class EmulatedLinks::Impl {
 public:
  using Clock = std::chrono::steady_clock;
  using Function = std::function<void()>;

  Impl(const simulator::Cluster& cluster, const Topology& topology)
      : cluster_(checked(cluster)),
        topology_(topology),
        network_(cluster_, topology_, std::nullopt, simulator::Network::Host::joined) {}

  void carry(const Message& message, Function left, Function arrived) {
    {
      const std::lock_guard lock(mutex_);
      posted_.push_back({message, std::move(left), std::move(arrived), now()});
    }
    changed_.notify_one();
  }

  void begin_traffic(simulator::SideTraffic traffic, Clock::time_point begin) {
    {
      const std::lock_guard lock(mutex_);
      require(!traffic_, "emulator::EmulatedLinks: side traffic begins before the last has ended");
      traffic_ended_ = 0;
      if (traffic.empty()) return;
      traffic_.emplace(Traffic{std::move(traffic), std::max(seconds(begin), now())});
      announced_ = true;
    }
    changed_.notify_one();
  }

  double wait_for_traffic() {
    std::unique_lock lock(mutex_);
    no_traffic_.wait(lock, [this] { return !traffic_; });
    return traffic_ended_;
  }

 private:
  using Key = std::tuple<int, int, int, int>;  // from, to, context, channel

  struct PostedMessage {
    Message message;
    Function left, arrived;
    double time = 0;

    Key stream() const { return {message.from, message.to, message.context, message.channel}; }
  };
  /// Messages that keep their order: the first one is on the links, the others wait for it.
  using Stream = std::deque<PostedMessage>;
  /// Side traffic that waits for its begin, or is on the links.
  struct Traffic {
    simulator::SideTraffic flows;
    double begin = 0;
    std::optional<simulator::SideRun> run = std::nullopt;
  };
  struct Arrival {
    double time;
    std::int64_t number;  // of equal times the earlier one comes first
    Function arrived;
    bool operator>(const Arrival& o) const { return std::tie(time, number) > std::tie(o.time, o.number); }
  };

  static const simulator::Cluster& checked(const simulator::Cluster& cluster) {
    cluster.check();
    return cluster;
  }

  double seconds(Clock::time_point time) const {
    return std::chrono::duration<double>(time - start_).count();
  }
  double now() const { return seconds(Clock::now()); }
  /// When the side traffic that waits begins; infinity: none does.
  double next_begin() const {
    return traffic_ && !traffic_->run ? traffic_->begin : std::numeric_limits<double>::infinity();
  }

  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    const auto has_news = [this] { return !posted_.empty() || announced_; };
    while (!stop.stop_requested()) {
      announced_ = false;
      std::vector<Function> due = advance(now());
      if (!due.empty()) {
        lock.unlock();  // they take locks of their own, under which others call carry
        for (const Function& function : due) function();
        lock.lock();
        continue;
      }
      double next = std::min(network_.next().time, next_begin());
      if (!arrivals_.empty()) next = std::min(next, arrivals_.top().time);
      if (std::isinf(next)) {
        changed_.wait(lock, stop, has_news);
      } else {
        const auto at =
            start_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(next));
        changed_.wait_until(lock, stop, at, has_news);
      }
    }
  }

  /// Everything that happens until `now`, in the order of time. Gives what is to be called.
  std::vector<Function> advance(double now) {
    std::vector<Function> due;
    while (true) {
      const simulator::Network::Finished left = network_.next();
      const double begin = next_begin();
      const double until = std::min(posted_.empty() ? now : posted_.front().time, begin);
      if (left.time <= until) {
        leave(left, due);
      } else if (begin <= until) {
        traffic_->run.emplace(network_, traffic_->flows, topology_.ranks(), begin);
      } else if (!posted_.empty()) {
        PostedMessage posted = std::move(posted_.front());
        posted_.pop_front();
        const double time = posted.time;
        Stream& stream = streams_[posted.stream()];
        stream.push_back(std::move(posted));
        if (stream.size() == 1) depart(stream, time);
      } else {
        break;
      }
    }
    for (; !arrivals_.empty() && arrivals_.top().time <= now; arrivals_.pop()) {
      due.push_back(arrivals_.top().arrived);
    }
    return due;
  }

  void depart(const Stream& stream, double time) {
    const Message& m = stream.front().message;
    const int flow = network_.start(m.from, m.to, static_cast<std::int64_t>(m.bytes), time);
    flows_.emplace(flow, stream.front().stream());
  }

  /// The last byte of a message has left.
  void leave(const simulator::Network::Finished& left, std::vector<Function>& due) {
    network_.finish(left);
    if (traffic_ && traffic_->run && traffic_->run->has(left.flow)) return leave_traffic(left);
    const auto flow = flows_.find(left.flow);
    Stream& stream = streams_.at(flow->second);
    flows_.erase(flow);
    PostedMessage posted = std::move(stream.front());
    stream.pop_front();
    if (!stream.empty()) depart(stream, left.time);
    due.push_back(std::move(posted.left));
    const bool inside = topology_.same_node(posted.message.from, posted.message.to);
    const double latency = (inside ? cluster_.intra_node : cluster_.inter_node).latency;
    arrivals_.push({left.time + latency, arrivals_pushed_++, std::move(posted.arrived)});
  }

  void leave_traffic(const simulator::Network::Finished& left) {
    traffic_->run->leave(left.flow, left.time);
    if (traffic_->run->under_way()) return;
    traffic_ended_ = now() - traffic_->begin;
    traffic_.reset();
    no_traffic_.notify_all();
  }

  simulator::Cluster cluster_;
  Topology topology_;
  simulator::Network network_;
  Clock::time_point start_ = Clock::now();

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<PostedMessage> posted_;  // not yet seen by the thread
  bool announced_ = false;            // side traffic, not yet seen by the thread
  std::optional<Traffic> traffic_;
  double traffic_ended_ = 0;  // of the last one, counted from its begin
  std::condition_variable no_traffic_;
  std::map<Key, Stream> streams_;
  std::map<int, Key> flows_;  // by number of the flow
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals_;
  std::int64_t arrivals_pushed_ = 0;
  std::jthread thread_{[this](const std::stop_token& stop) { run(stop); }};  // last: it uses all of the above
};

EmulatedLinks::EmulatedLinks(const simulator::Cluster& cluster, const Topology& topology)
    : impl_(std::make_unique<Impl>(cluster, topology)) {}

EmulatedLinks::~EmulatedLinks() = default;

void EmulatedLinks::carry(const Message& message, std::function<void()> left, std::function<void()> arrived) {
  impl_->carry(message, std::move(left), std::move(arrived));
}

void EmulatedLinks::begin_traffic(simulator::SideTraffic traffic, Impl::Clock::time_point begin) {
  impl_->begin_traffic(std::move(traffic), begin);
}

double EmulatedLinks::wait_for_traffic() {
  return impl_->wait_for_traffic();
}

}  // namespace annulus::emulator
