#include <annulus/attention/comm/transport.hpp>

#include <algorithm>
#include <utility>

#include <annulus/base/error.hpp>

#include "attention/comm/nccl/link.hpp"
#include "attention/comm/point_to_point.hpp"

namespace annulus::comm {

namespace {

/// An exchange on a channel's stream.
class NcclState final : public Request::State {
 public:
  NcclState(std::shared_ptr<NcclLink> link, const Queue& queue, EventPool::Taken done)
      : link_(std::move(link)), queue_(queue), done_(std::move(done)) {}

  void wait() override {
    link_->poll();
    done_->block(queue_);
  }
  bool test() override {
    link_->poll();
    if (!done_->done()) return false;
    done_->block(queue_);
    return true;
  }
  void finish() override { done_->wait(); }
  /// The peer may never send, and the kernel that waits for it holds the buffers.
  void give_up() noexcept override { link_->abort(); }

 private:
  std::shared_ptr<NcclLink> link_;
  Queue queue_;
  EventPool::Taken done_;
};

ncclDataType_t nccl_type(DType type) {
  for (const auto& [ours, theirs] : {std::pair(DType::f32, ncclFloat32),
                                     {DType::bf16, ncclBfloat16},
                                     {DType::f16, ncclFloat16},
                                     {DType::f64, ncclFloat64},
                                     {DType::i32, ncclInt32},
                                     {DType::i64, ncclInt64}})
    if (ours == type) return theirs;
  fail("reductions are over floating-point numbers, i32 and i64, not {}", name_of(type));
}

ncclRedOp_t nccl_op(ReduceOp op) {
  return op == ReduceOp::sum ? ncclSum : op == ReduceOp::max ? ncclMax : ncclMin;
}

/// Sums whose bits no order changes, and for which one kernel of NCCL takes less time than copies between
/// ranks and a kernel behind them. On two H200 selections with sums of 8.5 MB became shorter by it, those
/// with 17 MB longer.
bool is_short_integer_sum(const Reduction& elements) {
  constexpr std::size_t short_bytes = 12 << 20;
  const bool integers = elements.type == DType::i32 || elements.type == DType::i64;
  return integers && elements.op == ReduceOp::sum && elements.count * size_of(elements.type) <= short_bytes;
}

/// Memory of devices over NCCL; memory of the host, and what concerns it, through `control`. Reductions of
/// device memory in rank order are those of PointToPointCommunicator, but for short sums of integers.
class NcclCommunicator final : public PointToPointCommunicator {
 public:
  NcclCommunicator(std::unique_ptr<Communicator> control, const NcclOptions& options)
      : control_(std::move(control)),
        options_(options),
        link_(std::make_shared<NcclLink>(*control_, options)) {}

  int rank() const override { return control_->rank(); }
  const Topology& topology() const override { return control_->topology(); }
  int world_rank(int rank) const override { return control_->world_rank(rank); }
  Watchdog* watchdog() const override { return control_->watchdog(); }
  std::string description() const override {
    int version = 0;
    ANNULUS_NCCL_CALL(ncclGetVersion, &version);
    return fmt::format(
        "nccl {}.{}.{}, {}{}, {} channels{}; {}", version / 10000, version / 100 % 100, version % 100,
        link_->path_summary(), link_->copies() != nullptr ? ", copy engines inside of a node" : "",
        link_->channels(),
        options_.max_ctas > 0 ? fmt::format(" of at most {} thread blocks", options_.max_ctas) : "",
        control_->description());
  }

  Request exchange(const Queue& queue, std::span<const Send> sends, std::span<const Receive> receives,
                   int channel) override {
    if (queue.is_host()) return control_->exchange(queue, sends, receives, channel);
    check_channel(channel, "exchange");
    return PointToPointCommunicator::exchange(queue, sends, receives, channel);
  }
  void broadcast(const Queue& queue, void* data, std::size_t bytes, int root) override {
    if (queue.is_host()) return control_->broadcast(queue, data, bytes, root);
    check_root(root);
    const Watchdog::ActivityScope activity(
        watchdog(), fmt::format("a broadcast of {} bytes from rank {}", bytes, world_rank(root)));
    collective(queue, [&](const NcclLink::NcclChannel& channel) {
      ANNULUS_NCCL_CALL(ncclBroadcast, data, data, bytes, ncclInt8, root, channel.world.communicator,
                        channel.world.stream);
    });
  }
  void all_gather(const Queue& queue, const void* send, void* receive, std::size_t bytes) override {
    if (queue.is_host()) return control_->all_gather(queue, send, receive, bytes);
    const Watchdog::ActivityScope activity(watchdog(),
                                           fmt::format("an all_gather of {} bytes per rank", bytes));
    collective(queue, [&](const NcclLink::NcclChannel& channel) {
      ANNULUS_NCCL_CALL(ncclAllGather, send, receive, bytes, ncclInt8, channel.world.communicator,
                        channel.world.stream);
    });
  }
  void all_to_all(const Queue& queue, const void* send, void* receive, std::size_t bytes) override {
    if (queue.is_host()) return control_->all_to_all(queue, send, receive, bytes);
    PointToPointCommunicator::all_to_all(queue, send, receive, bytes);
  }
  void all_reduce(const Queue& queue, void* data, const Reduction& elements) override {
    if (queue.is_host()) return control_->all_reduce(queue, data, elements);
    if (size() == 1 || (elements.sums == Sums::rank_order && !is_short_integer_sum(elements)))
      return PointToPointCommunicator::all_reduce(queue, data, elements);
    const Watchdog::ActivityScope activity(
        watchdog(), fmt::format("an all_reduce of {} {}", elements.count, name_of(elements.type)));
    collective(queue, [&](const NcclLink::NcclChannel& channel) {
      ANNULUS_NCCL_CALL(ncclAllReduce, data, data, elements.count, nccl_type(elements.type),
                        nccl_op(elements.op), channel.world.communicator, channel.world.stream);
    });
  }
  Request start_all_gather(const Queue& queue, const void* send, void* receive, std::size_t bytes,
                           int channel) override {
    if (queue.is_host()) return control_->start_all_gather(queue, send, receive, bytes, channel);
    check_channel(channel, "all_gather");
    if (link_->communicators_of_exchange() == 0)  // all ranks are reached by copy engines
      return PointToPointCommunicator::start_all_gather(queue, send, receive, bytes, channel);
    // NCCL's own has peers of its own choice, neighbours in rings and trees.
    const NcclLink::NcclChannel& target = link_->channel(channel);
    const auto done = link_->launch(queue, target, false, {}, [&](const Event&) {
      ANNULUS_NCCL_CALL(ncclAllGather, send, receive, bytes, ncclInt8, target.world.communicator,
                        target.world.stream);
    });
    return Request(std::make_unique<NcclState>(link_, queue, done));
  }
  Request start_reduce_scatter(const Queue& queue, const void* send, void* receive, const Reduction& blocks,
                               int channel) override {
    if (queue.is_host()) return control_->start_reduce_scatter(queue, send, receive, blocks, channel);
    if (blocks.sums == Sums::rank_order)
      return PointToPointCommunicator::start_reduce_scatter(queue, send, receive, blocks, channel);
    check_channel(channel, "reduce_scatter");
    const NcclLink::NcclChannel& target = link_->channel(channel);
    const auto done = link_->launch(queue, target, false, {}, [&](const Event&) {
      ANNULUS_NCCL_CALL(ncclReduceScatter, send, receive, blocks.count, nccl_type(blocks.type),
                        nccl_op(blocks.op), target.world.communicator, target.world.stream);
    });
    return Request(std::make_unique<NcclState>(link_, queue, done));
  }
  int sms_of_exchange() const override { return options_.max_ctas * link_->communicators_of_exchange(); }
  void barrier() override { control_->barrier(); }
  void progress() override { control_->progress(); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return make_nccl(control_->split(color, key), options_);
  }
  std::unique_ptr<Communicator> for_another_thread() override { return control_->for_another_thread(); }
  void abort(const std::string& message) override {
    link_->abort();
    control_->abort(message);
  }

 protected:
  /// The order of streams makes memory ready.
  void ready(const Queue&, const char*) const override {}

  void check_channel(int channel, const char* operation) const override {
    PointToPointCommunicator::check_channel(channel, operation);
    require(channel < link_->channels(), "rank {}: {} on channel {}: NCCL was started with channels 0 to {}",
            rank(), operation, channel, link_->channels() - 1);
  }

  /// Enqueues the messages on the channel's streams. Both sides leave out those of no bytes.
  Request post(const Queue& queue, std::span<const Send> sends, std::span<const Receive> receives,
               int channel) override {
    return post_stages(queue, {{{sends.begin(), sends.end()}, {receives.begin(), receives.end()}}}, channel);
  }

  /// All of them at once: the order of the streams lets a stage begin when the one before is complete.
  Request post_stages(const Queue& queue, std::vector<CollectiveStage> stages, int channel) override {
    const bool is_collective = channel == collective_channel;
    const NcclLink::NcclChannel& target = is_collective ? link_->collectives() : link_->channel(channel);
    const auto is_intra_node = [&](const auto& message) {
      return message.bytes > 0 && link_->intra_node_rank(message.peer) >= 0;
    };
    const bool intra_node = std::ranges::any_of(stages, [&](const CollectiveStage& stage) {
      return std::ranges::any_of(stage.sends, is_intra_node) ||
             std::ranges::any_of(stage.receives, is_intra_node);
    });
    PeerCopies* const copies = link_->copies();
    const auto done =
        link_->launch(queue, target, intra_node, pending(stages, channel), [&](const Event& begun) {
          for (const CollectiveStage& stage : stages) {
            const bool first = &stage == &stages.front();
            if (intra_node && !first) link_->follow(target.world, target.intra_node);
            if (stage.before) stage.before(*target.world.queue);
            if (intra_node && !first) link_->follow(target.intra_node, target.world);
            const EventPool::Taken stage_before = first ? nullptr : link_->behind(target.world);
            if (intra_node)
              group(target.intra_node, stage, [&](int peer) { return link_->intra_node_rank(peer); });
            group(target.world, stage, [&](int peer) { return link_->world_channel_rank(peer); });
            if (copies != nullptr)
              copies->post(target.index, stage, first ? begun : *stage_before, target.world.stream);
          }
        });
    return Request(std::make_unique<NcclState>(link_, queue, done));
  }

 private:
  /// Posts the messages whose peer has a rank in the communicator, as one group.
  template <class RankOf>
  void group(const NcclLink::CommStream& comm_stream, const CollectiveStage& stage,
             const RankOf& rank_of) const {
    ANNULUS_NCCL_CALL(ncclGroupStart);
    for (const Receive& receive : stage.receives) {
      if (receive.bytes == 0 || rank_of(receive.peer) < 0) continue;
      ANNULUS_NCCL_CALL(ncclRecv, receive.data, receive.bytes, ncclInt8, rank_of(receive.peer),
                        comm_stream.communicator, comm_stream.stream);
    }
    for (const Send& send : stage.sends) {
      if (send.bytes == 0 || rank_of(send.peer) < 0) continue;
      ANNULUS_NCCL_CALL(ncclSend, send.data, send.bytes, ncclInt8, rank_of(send.peer),
                        comm_stream.communicator, comm_stream.stream);
    }
    ANNULUS_NCCL_CALL(ncclGroupEnd);
  }

  std::vector<Pending> pending(const std::vector<CollectiveStage>& stages, int channel) const {
    std::vector<Pending> messages;
    if (watchdog() == nullptr) return messages;
    const auto add = [&](bool receives_it, std::size_t index, int peer, std::size_t bytes) {
      if (bytes > 0) messages.push_back({receives_it, index, peer, world_rank(peer), channel, bytes});
    };
    for (const auto& [sends, receives, before] : stages) {
      for (std::size_t i = 0; i < receives.size(); ++i) add(true, i, receives[i].peer, receives[i].bytes);
      for (std::size_t i = 0; i < sends.size(); ++i) add(false, i, sends[i].peer, sends[i].bytes);
    }
    return messages;
  }

  template <class Call>
  void collective(const Queue& queue, const Call& call) {
    const NcclLink::NcclChannel& channel = link_->collectives();
    link_->launch(queue, channel, false, {}, [&](const Event&) { call(channel); })->block(queue);
  }

  std::unique_ptr<Communicator> control_;
  NcclOptions options_;
  std::shared_ptr<NcclLink> link_;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl(std::unique_ptr<Communicator> control, const NcclOptions& options) {
  return std::make_unique<NcclCommunicator>(std::move(control), options);
}

bool has_nccl() {
  return true;
}

}  // namespace annulus::comm
