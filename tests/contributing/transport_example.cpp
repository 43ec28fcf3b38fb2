// How to add a transport (docs/contributing.md): this one counts the bytes of exchanges, and leaves the rest
// to PassThrough, which shows all that a Communicator implements.
#include <gtest/gtest.h>

#include <annulus/attention/comm/loopback.hpp>
#include <annulus/attention/plan/schedules.hpp>

#include "attention/executor/attention_case.hpp"
#include "support/pass_through.hpp"

namespace annulus::test {
namespace {

using namespace comm;  // NOLINT(google-build-using-namespace): the example is a part of it

class CountingCommunicator final : public PassThrough {
 public:
  using PassThrough::PassThrough;

  std::int64_t sent_bytes() const { return sent_bytes_; }

  std::string description() const override { return "counting " + PassThrough::description(); }
  Request exchange(const Queue& queue, std::span<const Send> sends, std::span<const Receive> receives,
                   int channel) override {
    for (const Send& send : sends) sent_bytes_ += static_cast<std::int64_t>(send.bytes);
    return PassThrough::exchange(queue, sends, receives, channel);
  }

 private:
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
