#pragma once

#include <annulus/attention/comm/communicator.hpp>

#include <memory>
#include <span>
#include <string>

namespace annulus::test {

/// A communicator that hands every call on to another one, for tests that change one of them.
class PassThrough : public comm::Communicator {
 public:
  explicit PassThrough(comm::Communicator& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  const Topology& topology() const override { return inner_.topology(); }
  std::string description() const override { return inner_.description(); }
  int world_rank(int rank) const override { return inner_.world_rank(rank); }
  comm::Watchdog* watchdog() const override { return inner_.watchdog(); }
  comm::Request exchange(const Queue& queue, std::span<const comm::Send> sends,
                         std::span<const comm::Receive> receives, int channel) override {
    return inner_.exchange(queue, sends, receives, channel);
  }
  void broadcast(const Queue& queue, void* data, std::size_t bytes, int root) override {
    inner_.broadcast(queue, data, bytes, root);
  }
  void all_reduce(const Queue& queue, void* data, const comm::Reduction& elements) override {
    inner_.all_reduce(queue, data, elements);
  }
  void all_gather(const Queue& queue, const void* send, void* receive, std::size_t bytes) override {
    inner_.all_gather(queue, send, receive, bytes);
  }
  void all_to_all(const Queue& queue, const void* send, void* receive, std::size_t bytes) override {
    inner_.all_to_all(queue, send, receive, bytes);
  }
  void barrier() override { inner_.barrier(); }
  comm::Request start_all_gather(const Queue& queue, const void* send, void* receive, std::size_t bytes,
                                 int channel) override {
    return inner_.start_all_gather(queue, send, receive, bytes, channel);
  }
  comm::Request start_reduce_scatter(const Queue& queue, const void* send, void* receive,
                                     const comm::Reduction& blocks, int channel) override {
    return inner_.start_reduce_scatter(queue, send, receive, blocks, channel);
  }
  int sms_of_exchange() const override { return inner_.sms_of_exchange(); }
  void progress() override { inner_.progress(); }
  std::unique_ptr<comm::Communicator> split(int color, int key) override { return inner_.split(color, key); }
  void abort(const std::string& message) override { inner_.abort(message); }

 private:
  comm::Communicator& inner_;
};

}  // namespace annulus::test
