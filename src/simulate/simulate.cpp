#include <annulus/simulate/simulate.hpp>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include <annulus/base/error.hpp>
#include <annulus/simulate/network.hpp>

#include "simulate/summary.hpp"

namespace annulus::simulate {
namespace {

/// Discrete events: a rank's computes end, a flow leaves its links, a transfer arrives.
class Simulator {
 public:
  Simulator(const plan::Plan& plan, const Cluster& cluster, Detail detail)
      : plan_(plan),
        problem_(plan.problem),
        cluster_(cluster),
        keep_timeline_(detail == Detail::timeline),
        network_(cluster, problem_.topology),
        loads_(problem_.ranks(), plan.steps),
        ranks_(static_cast<std::size_t>(problem_.ranks())) {
    result_.ranks.resize(ranks_.size());
  }

  Simulation run() {
    for (int rank = 0; rank < problem_.ranks(); ++rank) events_.push({0, sequence_++, rank, computed});
    while (true) {
      const Network::Finished left = network_.next();
      const bool has_event = !events_.empty();
      if (left.flow >= 0 && (!has_event || left.time <= events_.top().time)) {
        leave(left);
      } else if (has_event) {
        const Event event = events_.top();
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

 private:
  static constexpr int computed = -1;

  struct Event {
    double time;
    std::int64_t sequence;  // of equal times the earlier one comes first
    int subject;            // rank
    int transfer;           // step that waits for the transfer that has arrived; `computed`: computes end
    bool operator>(const Event& o) const { return std::tie(time, sequence) > std::tie(o.time, o.sequence); }
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

  /// Messages of one channel from one rank to another, in order.
  struct Stream {
    std::deque<Sent> sends;         // posted by the sender, not yet on their way
    std::deque<int> receive_waits;  // posted by the receiver, likewise
    bool busy = false;
  };

  struct Travelling {
    std::tuple<int, int, plan::Channel> stream;
    int send_wait, receive_wait;
    std::int64_t span;  // in the timeline
  };

  RankState& state(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  RankSummary& summary(int rank) { return result_.ranks[static_cast<std::size_t>(rank)]; }

  // --- Ranks -----------------------------------------------------------------------------------------------

  void end_computes(int rank, double now) {
    RankState& r = state(rank);
    r.computing = false;
    r.free = now;
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
      summary(rank).waiting += now - r.free;
      if (keep_timeline_) result_.timeline.waits.push_back({rank, r.next, r.free, now});
    }
    begin(rank, r.next++, now);
  }

  void begin(int rank, int index, double now) {
    RankState& r = state(rank);
    const plan::Step step = plan_.step(rank, index);
    for (const plan::Clear& clear : step.clears) r.slots.hold(problem_, clear.piece, clear.slot);
    for (int channel = 0; channel < plan::channel_count; ++channel) post(rank, index, step, channel, now);
    double time = now;
    std::int64_t pairs = 0;
    for (const plan::Compute& compute : step.computes) {
      const std::int64_t of_head = pairs_of(problem_, compute), of_all = of_head * compute.heads.size();
      const double rate = cluster_.rate(plan_.pass, problem_.head_dim,
                                        std::min(compute.q_rows.size(), compute.kv_rows.size()));
      const double end = time + flops(problem_, plan_.pass, of_all) / rate;
      if (keep_timeline_) {
        result_.timeline.computes.push_back(
            {rank, index, compute.q_shard, compute.kv_shard, compute.heads, of_head, time, end});
      }
      pairs += of_all;
      time = end;
    }
    summary(rank).pairs += pairs;
    summary(rank).computing += time - now;
    loads_.add(rank, index, pairs);
    r.computing = true;
    events_.push({time, sequence_++, rank, computed});
  }

  // --- Transfers -------------------------------------------------------------------------------------------

  void post(int rank, int index, const plan::Step& step, int channel, double now) {
    const auto here = [channel](const plan::Transfer& t) { return static_cast<int>(t.channel) == channel; };
    for (const plan::Transfer& send : step.sends) {
      if (!here(send)) continue;
      ++state(rank).waits[send.wait];
      const std::tuple key(rank, send.peer, send.channel);
      streams_[key].sends.push_back({index, send.wait, send});
      flow(key, now);
    }
    for (const plan::Transfer& receive : step.receives) {
      if (!here(receive)) continue;
      ++state(rank).waits[receive.wait];
      state(rank).slots.hold(problem_, receive.piece, receive.slot);
      const std::tuple key(receive.peer, rank, receive.channel);
      streams_[key].receive_waits.push_back(receive.wait);
      flow(key, now);
    }
  }

  /// Sends the next message of a stream on its way if both sides have posted it.
  void flow(const std::tuple<int, int, plan::Channel>& key, double now) {
    Stream& stream = streams_[key];
    if (stream.busy || stream.sends.empty() || stream.receive_waits.empty()) return;
    stream.busy = true;
    const Sent sent = stream.sends.front();
    const int receive_wait = stream.receive_waits.front();
    stream.sends.pop_front();
    stream.receive_waits.pop_front();

    const auto [from, to, channel] = key;
    const plan::Piece& piece = sent.transfer.piece;
    const std::int64_t bytes = bytes_of(problem_, sent.transfer);
    const LinkClass link = link_between(problem_.topology, from, to);
    const auto t = static_cast<std::size_t>(piece.tensor), l = static_cast<std::size_t>(link);
    summary(from).sent[t][l] += bytes;
    summary(to).received[t][l] += bytes;
    if (keep_timeline_) {
      result_.timeline.transfers.push_back(
          {from, to, sent.step, piece.tensor, piece.owner, bytes, channel, link, now, now, now});
    }
    const int flow = network_.start(from, to, bytes, now);
    ANNULUS_ASSERT(flow == static_cast<int>(travelling_.size()));
    static_cast<void>(flow);
    travelling_.push_back({key, sent.wait, receive_wait, std::ssize(result_.timeline.transfers) - 1});
  }

  /// The last byte of a transfer has left.
  void leave(const Network::Finished& left) {
    network_.finish(left);
    const Travelling transfer = travelling_[static_cast<std::size_t>(left.flow)];
    const auto [from, to, channel] = transfer.stream;
    const bool inside = problem_.topology.same_node(from, to);
    const double arrival = left.time + (inside ? cluster_.inside : cluster_.between).latency;
    if (keep_timeline_) {
      TransferSpan& span = result_.timeline.transfers[static_cast<std::size_t>(transfer.span)];
      span.left = left.time;
      span.end = arrival;
    }
    events_.push({arrival, sequence_++, to, transfer.receive_wait});
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
    result_.imbalance = loads_.imbalance();
  }

  const plan::Plan& plan_;
  const plan::Problem& problem_;
  const Cluster& cluster_;
  bool keep_timeline_;
  Network network_;
  Loads loads_;
  std::vector<RankState> ranks_;
  std::map<std::tuple<int, int, plan::Channel>, Stream> streams_;
  std::vector<Travelling> travelling_;  // by flow
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::int64_t sequence_ = 0;
  Simulation result_;
};

}  // namespace

Simulation simulate(const plan::Plan& plan, const Cluster& cluster, Detail detail) {
  cluster.check();
  return Simulator(plan, cluster, detail).run();
}

}  // namespace annulus::simulate
