#include "attention/comm/staged/staged.hpp"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include <annulus/base/division.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/comm/point_to_point.hpp"
#include "attention/comm/staged/state.hpp"

namespace annulus::comm {

namespace {

/// Equally long blocks of memory, one after the other.
struct EqualBlocks {
  void* data = nullptr;
  std::size_t count = 1;
};

/// Collectives that wait for their data hand chunks on to those of the inner communicator; those under way
/// are exchanges of device memory.
class StagedCommunicator final : public PointToPointCommunicator, public StagesExchanges {
 public:
  StagedCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<Staging> staging)
      : inner_(std::move(inner)), staging_(std::move(staging)) {}

  int rank() const override { return inner_->rank(); }
  const Topology& topology() const override { return inner_->topology(); }
  int world_rank(int rank) const override { return inner_->world_rank(rank); }
  Watchdog* watchdog() const override { return inner_->watchdog(); }
  std::string description() const override {
    return inner_->description() + ", device memory through pinned host memory";
  }

  Request exchange(const Queue& queue, std::span<const Send> sends, std::span<const Receive> receives,
                   int channel) override {
    if (queue.is_host()) return host().exchange(queue, sends, receives, channel);
    return post(queue, sends, receives, channel);
  }
  Request start_all_gather(const Queue& queue, const void* send, void* receive, std::size_t bytes,
                           int channel) override {
    if (queue.is_host()) return host().start_all_gather(queue, send, receive, bytes, channel);
    return PointToPointCommunicator::start_all_gather(queue, send, receive, bytes, channel);
  }
  Request start_reduce_scatter(const Queue& queue, const void* send, void* receive, const Reduction& blocks,
                               int channel) override {
    if (queue.is_host()) return host().start_reduce_scatter(queue, send, receive, blocks, channel);
    if (blocks.sums == Sums::rank_order)
      return PointToPointCommunicator::start_reduce_scatter(queue, send, receive, blocks, channel);
    const std::size_t element = size_of(blocks.type);
    through_host(queue, {const_cast<void*>(send), ranks()}, {receive}, blocks.count * element, element,
                 [&](void* from, void* to, std::size_t length) {
                   Reduction of_part = blocks;
                   of_part.count = length / element;
                   inner_->start_reduce_scatter(HostExec(), from, to, of_part, channel).wait();
                 });
    return {};
  }

  void broadcast(const Queue& queue, void* data, std::size_t bytes, int root) override {
    if (queue.is_host()) return host().broadcast(queue, data, bytes, root);
    through_host(queue, {}, {data}, bytes, 1, [&](void*, void* part, std::size_t length) {
      inner_->broadcast(HostExec(), part, length, root);
    });
  }
  void all_reduce(const Queue& queue, void* data, const Reduction& elements) override {
    if (queue.is_host()) return host().all_reduce(queue, data, elements);
    const std::size_t element = size_of(elements.type);
    through_host(queue, {}, {data}, elements.count * element, element,
                 [&](void*, void* part, std::size_t length) {
                   Reduction of_part = elements;
                   of_part.count = length / element;
                   inner_->all_reduce(HostExec(), part, of_part);
                 });
  }
  void all_gather(const Queue& queue, const void* send, void* receive, std::size_t bytes) override {
    if (queue.is_host()) return host().all_gather(queue, send, receive, bytes);
    through_host(
        queue, {const_cast<void*>(send)}, {receive, ranks()}, bytes, 1,
        [&](void* from, void* to, std::size_t length) { inner_->all_gather(HostExec(), from, to, length); });
  }
  void all_to_all(const Queue& queue, const void* send, void* receive, std::size_t bytes) override {
    if (queue.is_host()) return host().all_to_all(queue, send, receive, bytes);
    require(send != receive || bytes == 0, "rank {}: all_to_all in place: give it a second buffer", rank());
    through_host(
        queue, {const_cast<void*>(send), ranks()}, {receive, ranks()}, bytes, 1,
        [&](void* from, void* to, std::size_t length) { inner_->all_to_all(HostExec(), from, to, length); });
  }
  void barrier() override { host().barrier(); }
  void reserve(const ExchangeLoad& load) override { staging_->reserve(load); }
  void progress() override {
    staging_->pump();
    inner_->progress();
    advance_stages();
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<StagedCommunicator>(host().split(color, key), staging_);
  }
  std::unique_ptr<Communicator> for_another_thread() override { return inner_->for_another_thread(); }
  void abort(const std::string& message) override { inner_->abort(message); }

 protected:
  /// The copies of an exchange wait for what the queue holds.
  void ready(const Queue&, const char*) const override {}
  /// Messages make the queue of their data wait.
  Queue queue_of_later_stages(const Queue& queue) override { return queue; }

  /// The inner communicator takes channels of callers alone: those of stages lie far behind them.
  Request post(const Queue& queue, std::span<const Send> sends, std::span<const Receive> receives,
               int channel) override {
    constexpr int channels_of_stages = 16384;
    auto state = std::make_unique<StagedState>(staging_, channel < 0 ? staging_->pool : staging_->exchanges,
                                               *inner_, queue);
    state->start(sends, receives, channel < 0 ? channels_of_stages - channel : channel);
    return Request(std::move(state));
  }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(size()); }

  /// `inner`, once nothing of this rank is in the outbox for which others may wait.
  Communicator& host() {
    staging_->flush();
    return *inner_;
  }

  /// Calls operation(from, to, length) for chunk after chunk of all blocks, whose copies on the host lie one
  /// after the other: the next chunk comes and the one before goes meanwhile. Without `from` the operation
  /// changes the data of `to` in place. Chunks are multiples of `grain` bytes.
  template <class Operation>
  void through_host(const Queue& queue, EqualBlocks from, EqualBlocks to, std::size_t bytes,
                    std::size_t grain, const Operation& operation) {
    const bool in_place = from.data == nullptr;
    if (in_place) from = to;
    constexpr std::size_t most = std::size_t{16} << 20;  // bytes of a chunk, over all blocks
    const std::size_t chunk = std::max<std::size_t>(1, most / std::max(from.count, to.count) / grain) * grain;
    const std::size_t longest = std::min(chunk, bytes), chunks = ceil_divide(bytes, chunk);
    staging_->flush();
    const Queue outward = staging_->outward(queue), inward = staging_->inward(queue);
    const auto posted = staging_->events.record(queue);
    posted->block(outward);
    posted->block(inward);
    struct ChunkBuffers {
      PinnedPool::Buffer from, to;
      EventPool::Taken loaded, stored;
    };
    std::array<ChunkBuffers, 2> slots;
    const auto each = [&](std::size_t number, const EqualBlocks& blocks, std::byte* host, const auto& copy) {
      const std::size_t offset = number * chunk, length = std::min(chunk, bytes - offset);
      for (std::size_t b = 0; b < blocks.count; ++b)
        copy(host + b * length, static_cast<std::byte*>(blocks.data) + b * bytes + offset, length);
      return length;
    };
    const auto load = [&](std::size_t number) {
      ChunkBuffers& slot = slots[number % 2];
      if (number < 2) {
        slot.from = staging_->pool.take(from.count * longest);
        if (!in_place) slot.to = staging_->pool.take(to.count * longest);
      }
      if (slot.stored) slot.stored->wait();
      each(number, from, slot.from.data(), [&](std::byte* host, const std::byte* device, std::size_t length) {
        outward.copy_to_host(host, device, length);
      });
      slot.loaded = staging_->events.record(outward);
    };
    if (chunks > 0) load(0);
    for (std::size_t number = 0; number < chunks; ++number) {
      if (number + 1 < chunks) load(number + 1);
      ChunkBuffers& slot = slots[number % 2];
      slot.loaded->wait();
      std::byte* const result = in_place ? slot.from.data() : slot.to.data();
      operation(slot.from.data(), result, std::min(chunk, bytes - number * chunk));
      each(number, to, result, [&](const std::byte* host, std::byte* device, std::size_t length) {
        inward.copy_from_host(device, host, length);
      });
      slot.stored = staging_->events.record(inward);
    }
    for (ChunkBuffers& slot : slots) {
      if (!slot.stored) continue;
      slot.stored->block(queue);
      slot.from.used = slot.to.used = slot.stored;
      staging_->pool.give_back(std::move(slot.from));
      if (!in_place) staging_->pool.give_back(std::move(slot.to));
    }
  }

  std::unique_ptr<Communicator> inner_;
  std::shared_ptr<Staging> staging_;
};

}  // namespace

std::unique_ptr<Communicator> staged(std::unique_ptr<Communicator> inner) {
  if constexpr (std::is_same_v<PinnedSpace, Kokkos::HostSpace>) {
    return inner;
  } else {
    return std::make_unique<StagedCommunicator>(std::move(inner), std::make_shared<Staging>());
  }
}

}  // namespace annulus::comm
