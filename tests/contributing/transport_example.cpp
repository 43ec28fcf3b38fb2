// How to add a transport (docs/contributing.md): what a Communicator implements. This one hands everything on
// and counts the bytes of exchanges.
#include <gtest/gtest.h>

#include <annulus/attention/comm/loopback.hpp>
#include <annulus/attention/plan/schedules.hpp>

#include "attention/executor/attention_case.hpp"

namespace annulus::test {
namespace {

using namespace comm;  // NOLINT(google-build-using-namespace): the example is a part of it

class CountingCommunicator final : public Communicator {
 public:
  explicit CountingCommunicator(Communicator& inner) : inner_(inner) {}

  std::int64_t sent_bytes() const { return sent_bytes_; }

  int rank() const override { return inner_.rank(); }
  const Topology& topology() const override { return inner_.topology(); }
  std::string description() const override { return "counting " + inner_.description(); }
  int world_rank(int rank) const override { return inner_.world_rank(rank); }
  Watchdog* watchdog() const override { return inner_.watchdog(); }

  Request exchange(const Queue& queue, std::span<const Send> sends, std::span<const Receive> receives,
                   int channel) override {
    for (const Send& send : sends) sent_bytes_ += static_cast<std::int64_t>(send.bytes);
    return inner_.exchange(queue, sends, receives, channel);
  }

  // The templates of Communicator, which take Views, call these.
  void broadcast(const Queue& queue, void* data, std::size_t bytes, int root) override {
    inner_.broadcast(queue, data, bytes, root);
  }
  void all_reduce(const Queue& queue, void* data, const Reduction& elements) override {
    inner_.all_reduce(queue, data, elements);
  }
  void all_gather(const Queue& queue, const void* send, void* receive, std::size_t bytes) override {
    inner_.all_gather(queue, send, receive, bytes);
  }
  void all_to_all(const Queue& queue, const void* send, void* receive, std::size_t bytes) override {
    inner_.all_to_all(queue, send, receive, bytes);
  }
  void barrier() override { inner_.barrier(); }
  Request start_all_gather(const Queue& queue, const void* send, void* receive, std::size_t bytes,
                           int channel) override {
    return inner_.start_all_gather(queue, send, receive, bytes, channel);
  }
  Request start_reduce_scatter(const Queue& queue, const void* send, void* receive, const Reduction& blocks,
                               int channel) override {
    return inner_.start_reduce_scatter(queue, send, receive, blocks, channel);
  }
  void progress() override { inner_.progress(); }
  std::unique_ptr<Communicator> split(int color, int key) override { return inner_.split(color, key); }
  std::unique_ptr<Communicator> for_another_thread() override { return inner_.for_another_thread(); }
  void abort(const std::string& message) override { inner_.abort(message); }

 private:
  Communicator& inner_;
  std::int64_t sent_bytes_ = 0;
};

TEST(TransportExample, CarriesWhatThePlansSay) {
  const auto sample = make_sample("causal", {.tokens = 64});
  const plan::Problem problem = sample->problem(Topology::uniform(4, 2), Layout::parse("striped"));
  const plan::Plan forward = plan::make_plan("ring", problem, plan::Pass::forward),
                   backward = plan::make_plan("burst", problem, plan::Pass::backward);
  run_loopback(problem.topology, [&](Communicator& loopback) {
    CountingCommunicator communicator(loopback);
    expect_correct(run(communicator, *sample, forward, backward), "counting");
    EXPECT_EQ(communicator.sent_bytes(),
              traffic(forward, loopback.rank()).sent_bytes + traffic(backward, loopback.rank()).sent_bytes);
  });
}

}  // namespace
}  // namespace annulus::test
