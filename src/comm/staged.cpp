#include "comm/staged.hpp"

#include <exception>
#include <list>
#include <mutex>
#include <type_traits>
#include <utility>

#include <annulus/core/memory.hpp>
#include <annulus/core/tensor.hpp>

namespace annulus::comm {

namespace {

using PinnedSpace = Kokkos::SharedHostPinnedSpace;  // the host's where Kokkos knows no device

/// Pinned buffers, kept for the next message: pinning memory takes longer than most messages do.
class PinnedPool {
 public:
  using Buffer = Owned<Kokkos::View<std::byte*, PinnedSpace>>;

  /// The smallest free buffer that holds `bytes`; a new one where there is none.
  Buffer take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      const std::size_t size = it->view().size();
      if (size >= bytes && (best == free_.end() || size < best->view().size())) best = it;
    }
    if (best == free_.end()) {
      return Buffer::uninitialized(HostExec(), MemoryCategory::communication, "annulus::comm::staging",
                                   bytes);
    }
    Buffer buffer = std::move(*best);
    free_.erase(best);
    return buffer;
  }
  void give_back(Buffer buffer) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(buffer));
  }

 private:
  std::mutex mutex_;
  std::list<Buffer> free_;
};

/// A piece of device memory and its copy in pinned memory.
struct Staged {
  void* device = nullptr;
  std::size_t bytes = 0;
  PinnedPool::Buffer host;
  std::byte* data() const { return host.view().data(); }
};

class StagedState final : public Request::State {
 public:
  StagedState(std::shared_ptr<PinnedPool> pool, const Queue& queue) : pool_(std::move(pool)), queue_(queue) {}
  ~StagedState() override {
    // Given up: nobody knows what still writes to the buffers, so they are not used again.
    if (inner_.active()) return;
    for (auto* side : {&sends_, &receives_}) {
      for (Staged& staged : *side) pool_->give_back(std::move(staged.host));
    }
  }

  void start(Communicator& inner, std::span<const Send> sends, std::span<const Receive> receives,
             int channel) {
    std::vector<Send> inner_sends;
    std::vector<Receive> inner_receives;
    for (const Send& send : sends) {
      const Staged& copy = stage(sends_, const_cast<void*>(send.data), send.bytes);
      if (send.bytes > 0) queue_.copy_to_host(copy.data(), send.data, send.bytes);
      inner_sends.push_back({copy.data(), send.bytes, send.peer});
    }
    for (const Receive& receive : receives) {
      inner_receives.push_back(
          {stage(receives_, receive.data, receive.bytes).data(), receive.bytes, receive.peer});
    }
    queue_.fence("annulus::comm::staged: what is sent is on the host");
    inner_ = inner.exchange(HostExec(), inner_sends, inner_receives, channel);
  }

  void wait() override {
    inner_.wait();
    land();
  }
  bool test() override {
    if (!inner_.test()) return false;
    land();
    return true;
  }
  void drop() noexcept override {
    inner_ = Request();  // waits, or gives up while an exception unwinds the stack
    if (std::uncaught_exceptions() > 0) return;
    try {
      land();
    } catch (const std::exception&) {  // a device that no longer copies: the next kernel says so
    }
  }

 private:
  const Staged& stage(std::vector<Staged>& side, void* device, std::size_t bytes) {
    side.push_back({device, bytes, pool_->take(bytes)});
    return side.back();
  }

  /// Brings what has arrived to the device. Fenced: the buffers are about to serve other messages.
  void land() {
    for (const Staged& receive : receives_) {
      if (receive.bytes > 0) queue_.copy_from_host(receive.device, receive.data(), receive.bytes);
    }
    queue_.fence("annulus::comm::staged: what has arrived is on the device");
  }

  std::shared_ptr<PinnedPool> pool_;
  Queue queue_;
  std::vector<Staged> sends_, receives_;
  Request inner_;
};

class StagedCommunicator final : public Communicator {
 public:
  explicit StagedCommunicator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  const Topology& topology() const override { return inner_->topology(); }
  int job_rank(int rank) const override { return inner_->job_rank(rank); }
  Watch* watch() const override { return inner_->watch(); }
  std::string description() const override {
    return inner_->description() + ", device memory through pinned host memory";
  }

  Request exchange(const Queue& queue, std::span<const Send> sends, std::span<const Receive> receives,
                   int channel) override {
    if (queue.is_host()) return inner_->exchange(queue, sends, receives, channel);
    auto state = std::make_unique<StagedState>(pool_, queue);
    state->start(*inner_, sends, receives, channel);
    return Request(std::move(state));
  }

  void broadcast(const Queue& queue, void* data, std::size_t bytes, int root) override {
    if (queue.is_host()) return inner_->broadcast(queue, data, bytes, root);
    Copy copy(*this, queue, bytes);
    copy.load(data, bytes);
    inner_->broadcast(HostExec(), copy.data(), bytes, root);
    copy.store(data, bytes);
  }
  void all_reduce(const Queue& queue, void* data, std::size_t count, DType type, ReduceOp op) override {
    if (queue.is_host()) return inner_->all_reduce(queue, data, count, type, op);
    const std::size_t bytes = count * size_of(type);
    Copy copy(*this, queue, bytes);
    copy.load(data, bytes);
    inner_->all_reduce(HostExec(), copy.data(), count, type, op);
    copy.store(data, bytes);
  }
  void all_gather(const Queue& queue, const void* send, void* receive, std::size_t bytes) override {
    if (queue.is_host()) return inner_->all_gather(queue, send, receive, bytes);
    const std::size_t all = bytes * static_cast<std::size_t>(size());
    Copy from(*this, queue, bytes), to(*this, queue, all);
    from.load(send, bytes);
    inner_->all_gather(HostExec(), from.data(), to.data(), bytes);
    to.store(receive, all);
  }
  void reduce_scatter(const Queue& queue, const void* send, void* receive, std::size_t count, DType type,
                      ReduceOp op) override {
    if (queue.is_host()) return inner_->reduce_scatter(queue, send, receive, count, type, op);
    const std::size_t bytes = count * size_of(type), all = bytes * static_cast<std::size_t>(size());
    Copy from(*this, queue, all), to(*this, queue, bytes);
    from.load(send, all);
    inner_->reduce_scatter(HostExec(), from.data(), to.data(), count, type, op);
    to.store(receive, bytes);
  }
  void all_to_all(const Queue& queue, const void* send, void* receive, std::size_t bytes) override {
    if (queue.is_host()) return inner_->all_to_all(queue, send, receive, bytes);
    const std::size_t all = bytes * static_cast<std::size_t>(size());
    require(send != receive || bytes == 0, "rank {}: all_to_all in place: give it a second buffer", rank());
    Copy from(*this, queue, all), to(*this, queue, all);
    from.load(send, all);
    inner_->all_to_all(HostExec(), from.data(), to.data(), bytes);
    to.store(receive, all);
  }
  void barrier() override { inner_->barrier(); }
  void progress() override { inner_->progress(); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return staged(inner_->split(color, key));
  }
  void abort(const std::string& message) override { inner_->abort(message); }

 private:
  /// Pinned memory for the time of a collective.
  class Copy {
   public:
    Copy(StagedCommunicator& owner, const Queue& queue, std::size_t bytes)
        : pool_(*owner.pool_), queue_(queue), buffer_(pool_.take(bytes)) {}
    ~Copy() { pool_.give_back(std::move(buffer_)); }
    Copy(const Copy&) = delete;
    Copy& operator=(const Copy&) = delete;

    std::byte* data() const { return buffer_.view().data(); }
    void load(const void* device, std::size_t bytes) {
      if (bytes > 0) queue_.copy_to_host(data(), device, bytes);
      queue_.fence("annulus::comm::staged: a collective's data is on the host");
    }
    void store(void* device, std::size_t bytes) {
      if (bytes > 0) queue_.copy_from_host(device, data(), bytes);
      queue_.fence("annulus::comm::staged: a collective's result is on the device");
    }

   private:
    PinnedPool& pool_;
    const Queue& queue_;
    PinnedPool::Buffer buffer_;
  };

  std::unique_ptr<Communicator> inner_;
  std::shared_ptr<PinnedPool> pool_ = std::make_shared<PinnedPool>();
};

}  // namespace

std::unique_ptr<Communicator> staged(std::unique_ptr<Communicator> inner) {
  if constexpr (std::is_same_v<PinnedSpace, Kokkos::HostSpace>) {
    return inner;
  } else {
    return std::make_unique<StagedCommunicator>(std::move(inner));
  }
}

}  // namespace annulus::comm
