#include "train/shard_service.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include <annulus/core/tensor.hpp>

namespace annulus::train {

/// What rank 0 asks of another rank; plain numbers, sent as bytes. The elements follow a `write`, and answer
/// a `read`.
struct ShardService::Order {
  enum Kind : std::int64_t { finish, read, write } kind = finish;
  std::int64_t buffer = 0;            // which of Buffers
  std::int64_t begin = 0, count = 0;  // elements of the shard
};

/// One of the buffers as rank 0 sees it.
class ShardService::Whole final : public FlatBuffer::Storage {
 public:
  Whole(const ShardService& service, int buffer) : service_(service), buffer_(buffer) {}

  std::int64_t size() const override { return service_.partition_.size(); }

  void read(std::int64_t begin, std::span<float> values) const override {
    move(Order::read, begin, static_cast<std::int64_t>(values.size()),
         [&](const Order& of, std::int64_t first, int rank, Messages& messages) {
           const auto part =
               values.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(of.count));
           if (rank == 0) return shard().read(of.begin, part);
           messages.receives.push_back({part.data(), part.size_bytes(), rank});
         });
  }

  void write(std::int64_t begin, std::span<const float> values) const override {
    move(Order::write, begin, static_cast<std::int64_t>(values.size()),
         [&](const Order& of, std::int64_t first, int rank, Messages& messages) {
           const auto part =
               values.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(of.count));
           if (rank == 0) return shard().write(of.begin, part);
           messages.sends.push_back({part.data(), part.size_bytes(), rank});
         });
  }

 private:
  struct Messages {
    std::vector<comm::Send> sends;
    std::vector<comm::Receive> receives;
  };

  const FlatBuffer& shard() const { return service_.shard(buffer_); }

  /// Calls use(order, first, rank, messages) for each rank's part of the elements [begin, begin + count);
  /// `first` counts from `begin`. Behind the orders to other ranks go the messages that `use` adds.
  template <class Use>
  void move(Order::Kind kind, std::int64_t begin, std::int64_t count, const Use& use) const {
    const sharding::Partition& partition = service_.partition_;
    const std::int64_t end = begin + count;
    std::vector<std::unique_ptr<Order>> orders;  // stay where they are while they are sent
    Messages messages;
    for (int unit = 0; unit < partition.units(); ++unit) {
      for (int rank = 0; rank < partition.ranks(); ++rank) {
        const model::ParameterUnit part = partition.part(unit, rank);
        const std::int64_t from = std::max(begin, part.begin), to = std::min(end, part.end);
        if (from >= to) continue;
        const Order order{kind, buffer_, partition.offset_in_shard(unit) + from - part.begin, to - from};
        if (rank != 0) {
          orders.push_back(std::make_unique<Order>(order));
          messages.sends.push_back({orders.back().get(), sizeof order, rank});
        }
        use(order, from - begin, rank, messages);
      }
    }
    service_.ranks_.exchange(HostExec(), messages.sends, messages.receives, service_.channel_).wait();
  }

  const ShardService& service_;
  int buffer_;
};

ShardService::ShardService(comm::Communicator& ranks, const sharding::Partition& partition,
                           const Buffers& shards, int channel)
    : ranks_(ranks), partition_(partition), shards_(shards), channel_(channel) {}

const FlatBuffer& ShardService::shard(int buffer) const {
  return *std::array{&shards_.parameters, &shards_.first_moment, &shards_.second_moment}.at(
      static_cast<std::size_t>(buffer));
}

void ShardService::run(const std::function<void(const Buffers&)>& work) const {
  if (ranks_.rank() != 0) return serve();
  const auto whole = [&](int buffer) { return FlatBuffer(std::make_shared<const Whole>(*this, buffer)); };
  std::exception_ptr failure;
  try {
    work({whole(0), whole(1), whole(2)});
  } catch (...) {  // the others stop serving first
    failure = std::current_exception();
  }
  const Order finish;
  std::vector<comm::Send> sends;
  for (int rank = 1; rank < ranks_.size(); ++rank) sends.push_back({&finish, sizeof finish, rank});
  ranks_.exchange(HostExec(), sends, {}, channel_).wait();
  if (failure) std::rethrow_exception(failure);
}

void ShardService::serve() const {
  std::vector<float> values;
  for (;;) {
    Order order;
    const std::array<comm::Receive, 1> receive{{{&order, sizeof order, 0}}};
    ranks_.exchange(HostExec(), {}, receive, channel_).wait();
    if (order.kind == Order::finish) return;
    values.resize(static_cast<std::size_t>(order.count));
    const std::size_t bytes = values.size() * sizeof(float);
    const FlatBuffer& from = shard(static_cast<int>(order.buffer));
    if (order.kind == Order::read) {
      from.read(order.begin, values);
      const std::array<comm::Send, 1> send{{{values.data(), bytes, 0}}};
      ranks_.exchange(HostExec(), send, {}, channel_).wait();
    } else {
      const std::array<comm::Receive, 1> elements{{{values.data(), bytes, 0}}};
      ranks_.exchange(HostExec(), {}, elements, channel_).wait();
      from.write(order.begin, values);
    }
  }
}

}  // namespace annulus::train
