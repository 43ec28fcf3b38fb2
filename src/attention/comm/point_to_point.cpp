#include "attention/comm/point_to_point.hpp"

#include <algorithm>
#include <cstring>

#include <annulus/base/division.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "attention/comm/reductions/contributions.hpp"
#include "attention/comm/reductions/reduce.hpp"
#include "attention/comm/routes.hpp"
#include "attention/comm/watchdog.hpp"

namespace annulus::comm {

namespace {

void copy(const Queue& queue, void* target, const void* source, std::size_t bytes) {
  if (bytes == 0 || target == source) return;
  queue.is_host() ? static_cast<void>(std::memmove(target, source, bytes))
                  : queue.copy(target, source, bytes);
}

/// Others' data that a reduction holds at a time, and the size up to which everybody gets everything. Rounds
/// cost a device more than they cost the host, and it moves data faster.
std::size_t workspace_bytes(bool on_host) {
  return std::size_t{on_host ? 8u : 128u} << 20;
}
std::size_t small_bytes(bool on_host) {
  return std::size_t{on_host ? 64u : 1024u} << 10;
}

/// Blocks have a multiple of so many elements, because devices combine 16 bytes at a time.
constexpr std::size_t block_multiple = 16;

/// Elements of the largest block of a round.
std::size_t largest_block_of(const Topology& topology, bool on_host, std::size_t element) {
  const std::size_t others = static_cast<std::size_t>(std::max(1, topology.ranks() - 1));
  return std::max<std::size_t>(1, workspace_bytes(on_host) / (2 * others * element) / block_multiple) *
         block_multiple;
}
/// Elements of the block that each rank combines when all combine `count`.
std::size_t block_of(const Topology& topology, std::size_t count) {
  return ceil_divide(ceil_divide(count, static_cast<std::size_t>(topology.ranks())), block_multiple) *
         block_multiple;
}
/// Elements of a round of an all-reduce.
std::size_t slab_of(const Topology& topology, bool on_host, std::size_t count, std::size_t element) {
  return std::min(count,
                  largest_block_of(topology, on_host, element) * static_cast<std::size_t>(topology.ranks()));
}
const std::byte* at(const void* data, std::size_t offset) {
  return data == nullptr ? nullptr : static_cast<const std::byte*>(data) + offset;
}
std::byte* at(void* data, std::size_t offset) {
  return data == nullptr ? nullptr : static_cast<std::byte*>(data) + offset;
}

}  // namespace

std::size_t all_reduce_space(const Topology& topology, bool on_host, std::size_t count, std::size_t element) {
  const auto ranks = static_cast<std::size_t>(topology.ranks());
  if (ranks == 1 || count == 0) return 0;
  if (count * element * ranks <= small_bytes(on_host)) return count * element * ranks;
  const std::size_t block = block_of(topology, slab_of(topology, on_host, count, element));
  return 2 * (ranks - 1) * block * element;  // what two rounds receive
}

std::string channel_name(int channel) {
  return channel < 0 ? std::string("a collective") : fmt::format("channel {}", channel);
}

void PointToPointCommunicator::ready(const Queue& queue, const char* operation) const {
  require(
      queue.is_host(),
      "rank {}: {} of device memory: the communicator '{}' moves memory of the host; copy to the host first",
      rank(), operation, description());
  queue.fence(std::string("annulus::comm::") + operation);
}

void PointToPointCommunicator::check_root(int root) const {
  require(root >= 0 && root < size(), "rank {}: broadcast from rank {}: the communicator has {} ranks",
          rank(), root, size());
}

void PointToPointCommunicator::check_channel(int channel, const char* operation) const {
  require(channel >= 0, "rank {}: {} on channel {}: channels are numbered from 0", rank(), operation,
          channel);
}

Queue PointToPointCommunicator::queue_of_later_stages(const Queue& queue) {
  if (queue.is_host()) return queue;
  if (!queue_of_later_stages_) queue_of_later_stages_ = queue.new_stream();
  return *queue_of_later_stages_;
}

Request PointToPointCommunicator::post_stages(const Queue& queue, std::vector<CollectiveStage> stages, int) {
  constexpr int stages_of_each = 2, numbers = (collective_channel - lowest_channel) / stages_of_each;
  const int first = collective_channel - 1 - stages_of_each * collectives_;
  collectives_ = (collectives_ + 1) % numbers;
  if (stages.size() == 1) return post(queue, stages[0].sends, stages[0].receives, first);
  // Taken here: another thread may wait for the request, and post its later stages.
  const Queue later = queue_of_later_stages(queue);
  return post_in_turn(std::move(stages),
                      [this, queue, later, first](const CollectiveStage& stage, int number) {
                        const Queue& stage_queue = number == 0 ? queue : later;
                        if (stage.before) stage.before(stage_queue);
                        return post(stage_queue, stage.sends, stage.receives, first - number);
                      });
}

Request PointToPointCommunicator::exchange(const Queue& queue, std::span<const Send> sends,
                                           std::span<const Receive> receives, int channel) {
  check_channel(channel, "exchange");
  const auto check = [&](const auto& message, const char* kind) {
    require(message.peer >= 0 && message.peer < size(), "rank {}: {} rank {}: the communicator has {} ranks",
            rank(), kind, message.peer, size());
    require(message.data != nullptr || message.bytes == 0, "rank {}: {} rank {}: {} bytes at a null pointer",
            rank(), kind, message.peer, message.bytes);
  };
  for (const Send& send : sends) check(send, "send to");
  for (const Receive& receive : receives) check(receive, "receive from");
  ready(queue, "exchange");
  return post(queue, sends, receives, channel);
}

void PointToPointCommunicator::broadcast(const Queue& queue, void* data, std::size_t bytes, int root) {
  check_root(root);
  ready(queue, "broadcast");
  const Watchdog::ActivityScope activity(
      watchdog(), fmt::format("a broadcast of {} bytes from rank {}", bytes, world_rank(root)));
  // Binomial tree over ranks relative to the root: receive from the parent, then send to ever nearer
  // children.
  const int relative = (rank() - root + size()) % size();
  const auto absolute = [&](int r) { return (r + root) % size(); };
  int bit = 1;
  for (; bit < size(); bit *= 2) {
    if ((relative & bit) == 0) continue;
    const Receive receive{data, bytes, absolute(relative - bit)};
    post(queue, {}, {&receive, 1}, collective_channel).wait();
    break;
  }
  std::vector<Send> sends;
  for (bit /= 2; bit > 0; bit /= 2)
    if (relative + bit < size()) sends.push_back({data, bytes, absolute(relative + bit)});
  post(queue, sends, {}, collective_channel).wait();
}

Request PointToPointCommunicator::post_gather(const Queue& queue, const void* send, void* receive,
                                              std::size_t bytes, int channel) {
  const GatherRoute gather{
      .own = static_cast<const std::byte*>(send),
      .place = [=](int rank) { return at(receive, static_cast<std::size_t>(rank) * bytes); },
      .bytes = [=](int) { return bytes; }};
  Request request = post_stages(queue, gather.stages(topology(), rank()), channel);
  copy(queue, at(receive, static_cast<std::size_t>(rank()) * bytes), send, bytes);
  return request;
}

void PointToPointCommunicator::all_gather(const Queue& queue, const void* send, void* receive,
                                          std::size_t bytes) {
  ready(queue, "all_gather");
  const Watchdog::ActivityScope activity(watchdog(),
                                         fmt::format("an all_gather of {} bytes per rank", bytes));
  post_gather(queue, send, receive, bytes, collective_channel).wait();
}

Request PointToPointCommunicator::start_all_gather(const Queue& queue, const void* send, void* receive,
                                                   std::size_t bytes, int channel) {
  check_channel(channel, "all_gather");
  ready(queue, "all_gather");
  return post_gather(queue, send, receive, bytes, channel);
}

Request PointToPointCommunicator::start_reduce_scatter(const Queue& queue, const void* send, void* receive,
                                                       const Reduction& blocks, int channel) {
  check_channel(channel, "reduce_scatter");
  ready(queue, "reduce_scatter");
  const std::size_t bytes = blocks.count * size_of(blocks.type);
  ContributionMemory memory(queue, static_cast<std::size_t>(size() - 1) * bytes);
  const ReductionRoute route{
      .block = [=](int rank) { return at(send, static_cast<std::size_t>(rank) * bytes); },
      .count = [=](int) { return blocks.count; },
      .memory = memory.data(),
      .type = blocks.type,
      .op = blocks.op};
  Request request = post_stages(queue, route.stages(topology(), rank()), channel);
  return combine_after(std::move(request), std::move(memory), queue, blocks,
                       route.arrived(topology(), rank()), receive);
}

void PointToPointCommunicator::all_to_all(const Queue& queue, const void* send, void* receive,
                                          std::size_t bytes) {
  ready(queue, "all_to_all");
  const Watchdog::ActivityScope activity(watchdog(),
                                         fmt::format("an all_to_all of {} bytes a pair of ranks", bytes));
  require(send != receive || bytes == 0, "rank {}: all_to_all in place: give it a second buffer", rank());
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int step = 1; step < size(); ++step) {
    const int to = (rank() + step) % size(), from = (rank() - step + size()) % size();
    sends.push_back({at(send, static_cast<std::size_t>(to) * bytes), bytes, to});
    receives.push_back({at(receive, static_cast<std::size_t>(from) * bytes), bytes, from});
  }
  Request request = post(queue, sends, receives, collective_channel);
  const std::size_t own = static_cast<std::size_t>(rank()) * bytes;
  copy(queue, at(receive, own), at(send, own), bytes);
  request.wait();
}

void PointToPointCommunicator::barrier() {
  const Watchdog::ActivityScope activity(watchdog(), "a barrier");
  const Queue host{HostExec()};
  // Dissemination: after round k a rank has heard, directly or not, of the 2^(k+1) - 1 ranks before it.
  for (int distance = 1; distance < size(); distance *= 2) {
    const Send send{nullptr, 0, (rank() + distance) % size()};
    const Receive receive{nullptr, 0, (rank() - distance + size()) % size()};
    post(host, {&send, 1}, {&receive, 1}, collective_channel).wait();
  }
}

void PointToPointCommunicator::all_reduce_small(const Queue& queue, std::byte* data, std::size_t count,
                                                DType type, ReduceOp op) {
  const std::size_t bytes = count * size_of(type);
  const Workspace::Use all(workspace_, queue,
                           all_reduce_space(topology(), queue.is_host(), count, size_of(type)));
  all_gather(queue, data, all.data(), bytes);
  reduce_in_order(queue, type, op, {all.data(), bytes, size(), rank(), data, true}, data, count);
}

void PointToPointCommunicator::all_reduce(const Queue& queue, void* data, const Reduction& elements) {
  const std::size_t count = elements.count;
  const DType type = elements.type;
  const ReduceOp op = elements.op;
  ready(queue, "all_reduce");
  const std::size_t element = size_of(type), ranks = static_cast<std::size_t>(size());
  if (size() == 1 || count == 0) return;
  const Watchdog::ActivityScope activity(watchdog(),
                                         fmt::format("an all_reduce of {} {}", count, name_of(type)));
  std::byte* bytes = static_cast<std::byte*>(data);
  // Little data: one step in which everybody gets and combines everything is faster than two.
  if (count * element * ranks <= small_bytes(queue.is_host()))
    return all_reduce_small(queue, bytes, count, type, op);

  const std::size_t slab = slab_of(topology(), queue.is_host(), count, element),
                    rounds = ceil_divide(count, slab);
  struct RankBlock {
    std::byte* data;
    std::size_t count;
  };
  const auto block = [=, this](std::size_t round, int rank) {
    const std::size_t begin = round * slab, length = std::min(slab, count - begin);
    const std::size_t share = block_of(topology(), length);
    const std::size_t first = std::min(length, static_cast<std::size_t>(rank) * share);
    return RankBlock{bytes + (begin + first) * element, std::min(share, length - first)};
  };
  // Two halves: the messages of the next round travel while this one is combined.
  const std::size_t bytes_of_both = all_reduce_space(topology(), queue.is_host(), count, element),
                    half_bytes = bytes_of_both / 2;
  const Workspace::Use space(workspace_, queue, bytes_of_both);
  const auto half = [&](std::size_t round) { return space.data() + (round % 2) * half_bytes; };
  const auto place = [&](std::size_t round) { return [=](int rank) { return block(round, rank).data; }; };
  const auto start = [&](const auto& route) {
    return post_stages(queue, route.stages(topology(), rank()), collective_channel);
  };
  const auto reduction = [&](std::size_t round) {
    return ReductionRoute{.block = place(round),
                          .count = [=](int rank) { return block(round, rank).count; },
                          .memory = half(round),
                          .type = type,
                          .op = op};
  };
  Request next = start(reduction(0)), gather;
  for (std::size_t round = 0; round < rounds; ++round) {
    Request now = std::move(next);
    if (round + 1 < rounds) next = start(reduction(round + 1));
    now.wait();
    const RankBlock own = block(round, rank());
    reduce_in_order(queue, type, op, reduction(round).arrived(topology(), rank()), own.data, own.count);
    gather.wait();
    gather = start(GatherRoute{.own = own.data, .place = place(round), .bytes = [=](int rank) {
                                 return block(round, rank).count * element;
                               }});
  }
  gather.wait();
}

}  // namespace annulus::comm
