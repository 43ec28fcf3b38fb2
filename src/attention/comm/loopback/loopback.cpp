#include <annulus/attention/comm/loopback.hpp>
#include <thread>
#include <utility>

#include "attention/comm/loopback/world.hpp"
#include "attention/comm/point_to_point.hpp"
#include "attention/comm/reductions/split.hpp"
#include "attention/comm/staged/staged.hpp"
#include "base/kokkos/execution/threads.hpp"

namespace annulus::comm {

namespace {

class LoopbackState final : public Request::State {
 public:
  LoopbackState(std::shared_ptr<LoopbackWorld> world, LoopbackWorld::Operation operation)
      : world_(std::move(world)), operation_(std::move(operation)) {
    world_->post(operation_);
  }
  ~LoopbackState() override { world_->withdraw(operation_); }

  void wait() override { world_->wait(operation_); }
  bool test() override { return world_->test(operation_); }
  void keep(const std::string& error) noexcept override { world_->remember(operation_.rank, error); }

 private:
  std::shared_ptr<LoopbackWorld> world_;
  LoopbackWorld::Operation operation_;
};

class LoopbackCommunicator final : public PointToPointCommunicator {
 public:
  LoopbackCommunicator(std::shared_ptr<LoopbackWorld> world, SplitGroup group, int context, std::string name)
      : world_(std::move(world)), group_(std::move(group)), context_(context), name_(std::move(name)) {}

  int rank() const override { return group_.rank; }
  const Topology& topology() const override { return group_.topology; }
  std::string description() const override { return name_; }
  int world_rank(int rank) const override { return group_.members[static_cast<std::size_t>(rank)]; }
  Watchdog* watchdog() const override { return world_->watchdog(world_rank(rank())); }

  std::unique_ptr<Communicator> split(int color, int key) override {
    std::vector<ColorKey> wishes(static_cast<std::size_t>(size()));
    const ColorKey mine{color, key};
    all_gather(Queue(Kokkos::DefaultHostExecutionSpace()), &mine, wishes.data(), sizeof mine);
    SplitGroup group = split_group(wishes, topology(), rank());
    for (int& member : group.members) member = world_rank(member);
    return std::make_unique<LoopbackCommunicator>(world_, std::move(group),
                                                  world_->context_of(context_, splits_++, color), name_);
  }

  std::unique_ptr<Communicator> for_another_thread() override { return split(0, rank()); }

  void abort(const std::string& message) override {
    const Error error(fmt::format("rank {}: {}", world_rank(rank()), message));
    world_->fail(world_rank(rank()), message, std::make_exception_ptr(error));
    throw error;
  }

 protected:
  Request post(const Queue&, std::span<const Send> sends, std::span<const Receive> receives,
               int channel) override {
    LoopbackWorld::Operation operation;
    operation.rank = world_rank(rank());
    const auto add = [&](void* data, std::size_t bytes, int peer, bool is_send, std::size_t index) {
      LoopbackWorld::LoopbackMessage& message = operation.messages.emplace_back();
      message.data = data;
      message.bytes = bytes;
      message.source = is_send ? operation.rank : world_rank(peer);
      message.target = is_send ? world_rank(peer) : operation.rank;
      message.context = context_;
      message.channel = channel;
      message.is_send = is_send;
      message.index = index;
      message.peer = peer;
    };
    for (std::size_t i = 0; i < receives.size(); ++i)
      add(receives[i].data, receives[i].bytes, receives[i].peer, false, i);
    for (std::size_t i = 0; i < sends.size(); ++i)
      add(const_cast<void*>(sends[i].data), sends[i].bytes, sends[i].peer, true, i);
    return Request(std::make_unique<LoopbackState>(world_, std::move(operation)));
  }

 private:
  std::shared_ptr<LoopbackWorld> world_;
  SplitGroup group_;
  int context_ = 0, splits_ = 0;
  std::string name_;
};

/// The communicator of `rank` over all ranks of the world. `name` leads its description.
std::unique_ptr<Communicator> make_loopback(std::shared_ptr<LoopbackWorld> world, const Topology& topology,
                                            int rank, std::string name) {
  SplitGroup group;
  for (int r = 0; r < topology.ranks(); ++r) group.members.push_back(r);
  group.rank = rank;
  group.topology = topology;
  world->enter(rank);
  return std::make_unique<LoopbackCommunicator>(std::move(world), std::move(group), 0, std::move(name));
}

}  // namespace

std::unique_ptr<Communicator> make_null() {
  // A world of one rank: a wait that only another rank could end is a deadlock, and an error at once.
  const auto world = std::make_shared<LoopbackWorld>(1, std::chrono::seconds(120), nullptr);
  return staged(make_loopback(world, Topology::uniform(1, 1), 0, "null"));
}

void run_loopback(const Topology& topology, const std::function<void(Communicator&)>& body,
                  const LoopbackOptions& options) {
  const auto world = std::make_shared<LoopbackWorld>(topology.ranks(), options.stall_timeout, options.wire);
  const auto run = [&](int rank) {
    granted_threads(1);  // OMP_DYNAMIC is a setting of each thread
    try {
      body(*staged(
          make_loopback(world, topology, rank, fmt::format("loopback, {} threads", topology.ranks()))));
    } catch (const std::exception& error) {
      world->fail(rank, error.what(), std::current_exception());
    } catch (...) {
      world->fail(rank, "an exception of unknown type", std::current_exception());
    }
    world->leave(rank);
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < topology.ranks(); ++rank) threads.emplace_back(run, rank);
  }
  if (const std::exception_ptr failure = world->failure()) std::rethrow_exception(failure);
}

}  // namespace annulus::comm
