#include <annulus/prediction/simulator/simulate.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include <annulus/base/error.hpp>

#include "prediction/simulator/network.hpp"
#include "prediction/simulator/rank_classes.hpp"
#include "prediction/simulator/side_run.hpp"
#include "prediction/simulator/summary.hpp"

namespace annulus::simulator {
namespace {

/// Discrete events: a rank's computes end, a flow leaves its links, a transfer arrives.
class Simulator {
 public:
  Simulator(const plan::Plan& plan, const Cluster& cluster, Detail detail, int representatives,
            const Selected& selected, const SideTraffic& traffic = {})
      : plan_(plan),
        problem_(plan.problem),
        cluster_(cluster),
        detail_(detail),
        kernels_(plan, cluster, representatives, selected),
        classes_(kernels_.classes()),
        network_(cluster, problem_.topology, representatives,
                 traffic.empty() ? Network::Host::apart : Network::Host::joined),
        side_(network_, traffic, representatives),
        loads_(representatives, plan.steps),
        totals_(representatives),
        ranks_(static_cast<std::size_t>(representatives)) {
    result_.ranks.resize(ranks_.size());
  }

  Simulation run() {
    for (int rank = 0; rank < classes_.representatives(); ++rank)
      events_.push({0, sequence_++, rank, computed});
    while (!side_.any() || unfinished_ > 0) {
      const Network::Finished left = network_.next();
      const bool has_event = !events_.empty();
      if (left.flow >= 0 && (!has_event || left.time <= events_.top().time)) {
        leave(left);
      } else if (has_event) {
        const SimulatedEvent event = events_.top();
        events_.pop();
        if (event.transfer == computed) {
          end_computes(event.subject, event.time);
        } else {
          complete(event.subject, event.transfer, event.time);
        }
      } else {
        break;
      }
    }
    check_ended();
    summarize();
    return std::move(result_);
  }

  /// The side traffic by then.
  SideProgress side_progress() const { return side_.progress(end_); }

 private:
  static constexpr int computed = -1;

  struct SimulatedEvent {
    double time;
    std::int64_t sequence;  // of equal times the earlier one comes first
    int subject;            // rank
    int transfer;           // step that waits for the transfer that has arrived; `computed`: computes end
    bool operator>(const SimulatedEvent& o) const {
      return std::tie(time, sequence) > std::tie(o.time, o.sequence);
    }
  };

  struct RankState {
    int next = 0;              // step that it begins next
    bool computing = true;     // in the step before
    double free = 0;           // since when it has not been computing
    std::map<int, int> waits;  // by step: posted transfers that are still under way
    SlotSizes slots;
  };

  struct Sent {
    int step, wait;
    plan::Transfer transfer;
  };

  /// First in, first out.
  template <class T>
  struct WaitingLine {
    std::vector<T> entries;
    std::size_t first = 0;
    bool empty() const { return first == entries.size(); }
    void push(T entry) { entries.push_back(std::move(entry)); }
    T pop() {
      T entry = std::move(entries[first++]);
      if (empty()) entries.clear(), first = 0;
      return entry;
    }
  };

  /// Messages of one channel from one rank to another, in order.
  struct MessageStream {
    WaitingLine<Sent> sends;         // posted by the sender, not yet on their way
    WaitingLine<int> receive_waits;  // posted by the receiver, likewise
    bool busy = false;
  };

  using Key = std::tuple<int, int, plan::Channel>;  // sender, a representative rank, and receiver

  struct InFlight {
    Key stream;
    int send_wait = 0, receive_wait = 0;
    std::int64_t span = -1;  // in the timeline
  };

  bool keeps_timeline() const { return detail_ == Detail::timeline; }
  RankState& state(int rank) { return ranks_[rank]; }
  RankSummary& summary(int rank) { return result_.ranks[rank]; }

  // --- Ranks -----------------------------------------------------------------------------------------------

  void end_computes(int rank, double now) {
    RankState& r = state(rank);
    r.computing = false;
    r.free = now;
    if (r.next >= plan_.steps) --unfinished_;
    advance(rank, now);
  }

  /// A transfer that step `wait` of a rank waits for is complete.
  void complete(int rank, int wait, double now) {
    --state(rank).waits[wait];
    advance(rank, now);
  }

  void advance(int rank, double now) {
    RankState& r = state(rank);
    if (r.computing || r.next >= plan_.steps) return;
    const auto waits = r.waits.find(r.next);
    if (waits != r.waits.end()) {
      if (waits->second > 0) return;
      r.waits.erase(waits);
    }
    if (now > r.free) {
      summary(rank).exposed_communication += now - r.free;
      if (keeps_timeline()) result_.timeline.waits.push_back({rank, r.next, r.free, now});
    }
    begin(rank, r.next++, now);
  }

  void begin(int rank, int index, double now) {
    RankState& r = state(rank);
    const plan::Step step = plan_.step(rank, index);
    for (const plan::Clear& clear : step.clears) r.slots.hold(problem_, clear.slice, clear.slot);
    for (int channel = 0; channel < plan::channel_count; ++channel) post(rank, index, step, channel, now);
    double time = now;
    std::int64_t pairs = 0;
    for (const plan::Compute& compute : step.computes) {
      const Kernels::ComputeWork work = kernels_.work(compute);
      if (counts_totals()) totals_.add(rank, compute, work.here);
      const double end = time + work.seconds;
      if (keeps_timeline()) {
        result_.timeline.computes.push_back({rank, index, compute.q_shard, compute.kv_shard, compute.heads,
                                             work.pairs / compute.heads.size(), time, end});
      }
      pairs += work.pairs;
      time = end;
    }
    summary(rank).pairs += pairs;
    summary(rank).computing += time - now;
    loads_.add(rank, plan_.round(index), pairs);
    r.computing = true;
    events_.push({time, sequence_++, rank, computed});
  }

  // --- Transfers -------------------------------------------------------------------------------------------

  void post(int rank, int index, const plan::Step& step, int channel, double now) {
    const auto here = [channel](const plan::Transfer& t) { return static_cast<int>(t.channel) == channel; };
    for (const plan::Transfer& send : step.sends) {
      if (!here(send)) continue;
      ++state(rank).waits[send.wait];
      const Key key(rank, send.peer, send.channel);
      streams_[key].sends.push({index, send.wait, send});
      flow(key, now);
    }
    for (const plan::Transfer& receive : step.receives) {
      if (!here(receive)) continue;
      ++state(rank).waits[receive.wait];
      state(rank).slots.hold(problem_, receive.slice, receive.slot);
      const auto [from, to] = classes_.image(receive.peer, rank);
      const Key key(from, to, receive.channel);
      streams_[key].receive_waits.push(receive.wait);
      flow(key, now);
    }
  }

  /// Sends the next message of a stream on its way if both sides have posted it.
  void flow(const Key& key, double now) {
    MessageStream& stream = streams_[key];
    if (stream.busy || stream.sends.empty() || stream.receive_waits.empty()) return;
    stream.busy = true;
    const Sent sent = stream.sends.pop();
    const int receive_wait = stream.receive_waits.pop();

    const auto [from, to, channel] = key;
    const plan::TensorSlice& slice = sent.transfer.slice;
    const std::int64_t bytes = bytes_of(problem_, sent.transfer);
    const LinkClass link = link_between(problem_.topology, from, to);
    const auto t = static_cast<std::size_t>(slice.tensor), l = static_cast<std::size_t>(link);
    summary(from).sent[t][l] += bytes;
    summary(classes_.representative(to)).received[t][l] += bytes;
    if (keeps_timeline()) {
      result_.timeline.transfers.push_back(
          {from, to, sent.step, slice.tensor, slice.owner, bytes, channel, link, now, now, now});
    }
    const auto flow = static_cast<std::size_t>(network_.start(from, to, bytes, now));
    in_flight_.resize(flow + 1);  // flows of the side traffic have none
    in_flight_[flow] = {key, sent.wait, receive_wait, std::ssize(result_.timeline.transfers) - 1};
  }

  /// The last byte of a transfer has left.
  void leave(const Network::Finished& left) {
    network_.finish(left);
    if (side_.has(left.flow)) return side_.leave(left.flow, left.time);
    const InFlight transfer = in_flight_[left.flow];
    const auto [from, to, channel] = transfer.stream;
    const bool inside = problem_.topology.same_node(from, to);
    const double arrival = left.time + (inside ? cluster_.intra_node : cluster_.inter_node).latency;
    if (keeps_timeline()) {
      TransferSpan& span = result_.timeline.transfers[transfer.span];
      span.left = left.time;
      span.end = arrival;
    }
    events_.push({arrival, sequence_++, classes_.representative(to), transfer.receive_wait});
    streams_[transfer.stream].busy = false;
    flow(transfer.stream, left.time);
    complete(from, transfer.send_wait, left.time);
  }

  // --- End -------------------------------------------------------------------------------------------------

  void check_ended() const {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const RankState& r = ranks_[rank];
      require(r.next == plan_.steps,
              "the {} plan of the {} pass does not end: rank {} cannot begin step {}, which waits for {} "
              "transfers that a peer never posts",
              plan_.schedule, plan::name_of(plan_.pass), rank, r.next,
              r.waits.contains(r.next) ? r.waits.at(r.next) : 0);
    }
  }

  void summarize() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      result_.ranks[rank].end = ranks_[rank].free;
      result_.ranks[rank].buffer_bytes = ranks_[rank].slots.bytes();
      result_.time = std::max(result_.time, ranks_[rank].free);
    }
    end_ = result_.time;
    result_.imbalance = loads_.imbalance();
    if (classes_.representatives() < problem_.ranks()) extend();
  }

  /// Extends results to the ranks that others have stood for.
  void extend() {
    result_.ranks.reserve(static_cast<std::size_t>(problem_.ranks()));
    for (int rank = classes_.representatives(); rank < problem_.ranks(); ++rank)
      result_.ranks.push_back(RankSummary(summary(classes_.representative(rank))));
    if (!counts_totals()) return;
    const std::vector<std::int64_t> pairs = totals_.pairs(problem_);
    for (std::size_t rank = 0; rank < pairs.size(); ++rank)
      result_.ranks[rank].pairs = kernels_.selected().share_of(pairs[rank]);
    result_.imbalance.worker = plan::worker_imbalance(pairs);
  }

  bool counts_totals() const {
    return detail_ != Detail::times && classes_.representatives() < problem_.ranks();
  }

  const plan::Plan& plan_;
  const plan::Problem& problem_;
  const Cluster& cluster_;
  Detail detail_;
  Kernels kernels_;
  const RankClasses& classes_;
  Network network_;
  SideRun side_;
  StepLoads loads_;
  Totals totals_;
  std::vector<RankState> ranks_;
  std::map<Key, MessageStream> streams_;
  std::vector<InFlight> in_flight_;  // by flow
  std::priority_queue<SimulatedEvent, std::vector<SimulatedEvent>, std::greater<>> events_;
  std::int64_t sequence_ = 0;
  int unfinished_ = classes_.representatives();  // ranks
  double end_ = 0;
  Simulation result_;
};

}  // namespace

int ranks_to_simulate(const plan::Plan& plan, Detail detail, plan::RankSubset subset) {
  const Topology& topology = plan.problem.topology;
  const bool every = detail == Detail::timeline || !topology.is_uniform();
  return plan::representative_ranks(plan, every ? plan::RankSubset::every_rank : subset,
                                    every ? 1 : topology.ranks_on(0));
}

std::int64_t messages_to_simulate(const plan::Plan& plan, Detail detail, plan::RankSubset subset,
                                  std::int64_t enough) {
  const int representatives = ranks_to_simulate(plan, detail, subset);
  std::int64_t most = 0;
  for (const int rank : {0, representatives / 2, representatives - 1}) {
    std::int64_t of_rank = 0;
    for (int step = 0; step < plan.steps && of_rank * representatives <= enough; ++step)
      of_rank += std::ssize(plan.step(rank, step).sends);
    most = std::max(most, of_rank * representatives);
  }
  return most;
}

namespace {

/// Ranks that stand for all. Throws Error where these have too many messages.
int checked_ranks(const plan::Plan& plan, const Cluster& cluster, Detail detail, plan::RankSubset subset) {
  constexpr std::int64_t most_messages = 6'000'000;  // more take gigabytes
  cluster.check();
  require(
      messages_to_simulate(plan, detail, subset, most_messages) <= most_messages,
      "plan '{}' ({}): its ranks send more than {} messages in {} steps, too many to simulate, and they do "
      "not repeat one another: simulate fewer ranks, or take a schedule that does with this mask (rings on "
      "zigzag or striped layouts under causal masks)",
      plan.schedule, plan::name_of(plan.pass), most_messages, plan.steps);
  return ranks_to_simulate(plan, detail, subset);
}

/// Which ranks to simulate: with selected pairs every one, because no two ranks repeat each other.
plan::RankSubset subset_of(const Selected& selected, plan::RankSubset subset) {
  return selected.pairs ? plan::RankSubset::every_rank : subset;
}

}  // namespace

Simulation simulate(const plan::Plan& plan, const Cluster& cluster, Detail detail, plan::RankSubset subset,
                    const Selected& selected) {
  const int ranks = checked_ranks(plan, cluster, detail, subset_of(selected, subset));
  return Simulator(plan, cluster, detail, ranks, selected).run();
}

PlanBeside simulate_beside(const plan::Plan& plan, const Cluster& cluster, const Selected& selected,
                           const SideTraffic& traffic) {
  const int ranks =
      checked_ranks(plan, cluster, Detail::times, subset_of(selected, plan::RankSubset::automatic));
  Simulator simulator(plan, cluster, Detail::times, ranks, selected, traffic);
  Simulation simulation = simulator.run();
  SideProgress progress = simulator.side_progress();
  double ended = 0;
  if (progress.left.empty()) {
    for (const double time : progress.ended) ended = std::max(ended, time);
  } else {
    for (const double behind : advance(progress.left, cluster).ended)
      ended = std::max(ended, simulation.time + behind);
  }
  return {std::move(simulation), std::move(progress.left), ended};
}

plan::Plan without_overlap(const plan::Plan& plan) {
  plan::Plan result = plan;
  result.steps = 2 * plan.steps;
  result.step = [of = plan.step](int rank, int index) {
    plan::Step step = of(rank, index / 2);
    if (index % 2 != 0) {
      plan::Step compute;
      compute.computes = std::move(step.computes);
      return compute;
    }
    for (auto* transfers : {&step.sends, &step.receives}) {
      for (plan::Transfer& transfer : *transfers) {
        transfer.post = index;
        transfer.wait = index + 1;
      }
    }
    step.computes.clear();
    return step;
  };
  return result;
}

}  // namespace annulus::simulator
