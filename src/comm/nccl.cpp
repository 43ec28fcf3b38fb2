#include <annulus/comm/nccl.hpp>

#include <exception>
#include <utility>

#include <annulus/base/error.hpp>

#include "comm/nccl_link.hpp"

namespace annulus::comm {

namespace {

/// An exchange on a lane's stream.
class NcclState final : public Request::State {
 public:
  NcclState(std::shared_ptr<NcclLink> link, const Queue& queue, const NcclLink::Lane& lane)
      : link_(std::move(link)), queue_(queue), done_(link_->take_event()) {
    ANNULUS_CUDA_CALL(cudaEventRecord, done_, lane.stream);
  }
  ~NcclState() override { link_->give_back(done_); }

  void wait() override {
    link_->poll();
    ANNULUS_CUDA_CALL(cudaStreamWaitEvent, static_cast<cudaStream_t>(queue_.stream()), done_, 0);
  }
  bool test() override {
    link_->poll();
    const cudaError_t state = cudaEventQuery(done_);
    if (state == cudaErrorNotReady) return false;
    cuda_check(state, "cudaEventQuery");
    wait();
    return true;
  }
  void drop() noexcept override {
    if (std::uncaught_exceptions() > 0) {
      link_->abort();  // the peer may never send, and the kernel that waits for it holds the buffers
    } else {
      cudaEventSynchronize(done_);  // an error is found again by the next poll
    }
  }

 private:
  std::shared_ptr<NcclLink> link_;
  Queue queue_;
  cudaEvent_t done_;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::unique_ptr<Communicator> control, const NcclOptions& options)
      : control_(std::move(control)),
        options_(options),
        link_(std::make_shared<NcclLink>(*control_, options)) {}

  int rank() const override { return control_->rank(); }
  const Topology& topology() const override { return control_->topology(); }
  int job_rank(int rank) const override { return control_->job_rank(rank); }
  Watch* watch() const override { return control_->watch(); }
  std::string description() const override {
    int version = 0;
    ANNULUS_NCCL_CALL(ncclGetVersion, &version);
    return fmt::format("nccl {}.{}.{}, {} channels; {}", version / 10000, version / 100 % 100, version % 100,
                       link_->channels(), control_->description());
  }

  Request exchange(const Queue& queue, std::span<const Send> sends, std::span<const Receive> receives,
                   int channel) override {
    if (queue.is_host()) return control_->exchange(queue, sends, receives, channel);
    require(channel >= 0 && channel < link_->channels(),
            "rank {}: exchange on channel {}: NCCL was started with channels 0 to {}", rank(), channel,
            link_->channels() - 1);
    for (const Send& send : sends) check("send to", send.peer, send.data, send.bytes);
    for (const Receive& receive : receives) check("receive from", receive.peer, receive.data, receive.bytes);
    const NcclLink::Lane& lane = link_->lane(channel);
    post(queue, lane, sends, receives);
    return Request(std::make_unique<NcclState>(link_, queue, lane));
  }

  void broadcast(const Queue& queue, void* data, std::size_t bytes, int root) override {
    if (queue.is_host()) return control_->broadcast(queue, data, bytes, root);
    require(root >= 0 && root < size(), "rank {}: broadcast from rank {}: the communicator has {} ranks",
            rank(), root, size());
    collective(queue, [&](const NcclLink::Lane& lane) {
      ANNULUS_NCCL_CALL(ncclBroadcast, data, data, bytes, ncclInt8, root, lane.communicator, lane.stream);
    });
  }
  void all_gather(const Queue& queue, const void* send, void* receive, std::size_t bytes) override {
    if (queue.is_host()) return control_->all_gather(queue, send, receive, bytes);
    collective(queue, [&](const NcclLink::Lane& lane) {
      ANNULUS_NCCL_CALL(ncclAllGather, send, receive, bytes, ncclInt8, lane.communicator, lane.stream);
    });
  }
  void all_to_all(const Queue& queue, const void* send, void* receive, std::size_t bytes) override {
    if (queue.is_host()) return control_->all_to_all(queue, send, receive, bytes);
    require(send != receive || bytes == 0, "rank {}: all_to_all in place: give it a second buffer", rank());
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (int peer = 0; peer < size(); ++peer) {
      const std::size_t offset = static_cast<std::size_t>(peer) * bytes;
      sends.push_back({static_cast<const std::byte*>(send) + offset, bytes, peer});
      receives.push_back({static_cast<std::byte*>(receive) + offset, bytes, peer});
    }
    post(queue, link_->collectives(), sends, receives);
    link_->queue_after(queue, link_->collectives());
  }
  void all_reduce(const Queue& queue, void* data, std::size_t count, DType type, ReduceOp op) override {
    control_->all_reduce(queue, data, count, type, op);
  }
  void reduce_scatter(const Queue& queue, const void* send, void* receive, std::size_t count, DType type,
                      ReduceOp op) override {
    control_->reduce_scatter(queue, send, receive, count, type, op);
  }
  void barrier() override { control_->barrier(); }
  void progress() override { control_->progress(); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return make_nccl(control_->split(color, key), options_);
  }
  void abort(const std::string& message) override {
    link_->abort();
    control_->abort(message);
  }

 private:
  void check(const char* kind, int peer, const void* data, std::size_t bytes) const {
    require(peer >= 0 && peer < size(), "rank {}: {} rank {}: the communicator has {} ranks", rank(), kind,
            peer, size());
    require(data != nullptr || bytes == 0, "rank {}: {} rank {}: {} bytes at a null pointer", rank(), kind,
            peer, bytes);
  }

  /// Enqueues the messages on the lane's stream, behind what `queue` holds. Both sides leave out those of no
  /// bytes.
  void post(const Queue& queue, const NcclLink::Lane& lane, std::span<const Send> sends,
            std::span<const Receive> receives) {
    link_->poll();
    link_->lane_after(lane, queue);
    ANNULUS_NCCL_CALL(ncclGroupStart);
    for (const Receive& receive : receives) {
      if (receive.bytes == 0) continue;
      ANNULUS_NCCL_CALL(ncclRecv, receive.data, receive.bytes, ncclInt8, receive.peer, lane.communicator,
                        lane.stream);
    }
    for (const Send& send : sends) {
      if (send.bytes == 0) continue;
      ANNULUS_NCCL_CALL(ncclSend, send.data, send.bytes, ncclInt8, send.peer, lane.communicator, lane.stream);
    }
    ANNULUS_NCCL_CALL(ncclGroupEnd);
  }

  template <class Call>
  void collective(const Queue& queue, const Call& call) {
    const NcclLink::Lane& lane = link_->collectives();
    link_->poll();
    link_->lane_after(lane, queue);
    call(lane);
    link_->queue_after(queue, lane);
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
