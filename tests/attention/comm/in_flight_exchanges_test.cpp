// Transfers for which streams wait: which is the oldest, since when, what is said of it. Without a device.
#include <gmock/gmock.h>

#include <chrono>
#include <memory>
#include <string>

#include "attention/comm/in_flight_exchanges.hpp"

namespace annulus::comm {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using Clock = Watchdog::Clock;

/// Where the streams are, by hand.
struct Stream {
  bool begun = false, done = false;
};

class HandProgress final : public InFlightExchanges::StreamProgress {
 public:
  explicit HandProgress(const Stream& stream) : stream_(stream) {}
  bool begun() const override { return stream_.begun; }
  bool done() const override { return stream_.done; }

 private:
  const Stream& stream_;
};

class InFlightExchangesTest : public testing::Test {
 protected:
  void add(int number, const Stream& stream, const std::string& what, Watchdog::Timeout timeout = 10s) {
    in_flight_.add(
        number, {std::make_unique<HandProgress>(stream),
                 [what](const Watchdog::Wait* wait) { return what + ": " + wait->to_string(); },
                 {{.receive = true, .index = 0, .peer = 1, .world_peer = 3, .channel = number, .bytes = 64}},
                 timeout});
  }

  std::string error_;
  int ended_ = 0;
  InFlightExchanges in_flight_{2, [this] { return error_; }, [this] { ++ended_; }};
  const Clock::time_point start_ = Clock::now();
};

TEST_F(InFlightExchangesTest, WaitsOnlyFromTheMomentOnAtWhichTheRankItselfIsReady) {
  Stream stream;
  add(0, stream, "step 1");
  EXPECT_EQ(in_flight_.poll(start_), "");
  EXPECT_EQ(in_flight_.longest_wait(start_ + 1h), 0) << "the rank itself computes";
  EXPECT_EQ(in_flight_.exceeded(start_ + 1h), std::nullopt);
  EXPECT_EQ(in_flight_.describe(start_ + 1h), "");
  stream.begun = true;
  in_flight_.poll(start_ + 1h);
  EXPECT_EQ(in_flight_.longest_wait(start_ + 1h + 4s), 4);
  EXPECT_EQ(in_flight_.exceeded(start_ + 1h + 10s), std::nullopt);
  EXPECT_EQ(in_flight_.exceeded(start_ + 1h + 11s), Watchdog::Timeout(10s));
  EXPECT_EQ(in_flight_.describe(start_ + 1h + 11s),
            "step 1: has waited 11.0 s for 64 bytes from rank 3 on channel 0");
  stream.done = true;
  in_flight_.poll(start_ + 1h + 12s);
  EXPECT_EQ(in_flight_.longest_wait(start_ + 2h), 0);
  EXPECT_EQ(in_flight_.describe(start_ + 2h), "");
}

// The exchanges of a stream follow one another: the second does not wait for others before the first has
// ended.
TEST_F(InFlightExchangesTest, TheFirstOfALaneIsTheOneThatWaits) {
  Stream first{true, false}, second{true, false};
  add(0, first, "step 1");
  add(0, second, "step 2");
  in_flight_.poll(start_);
  EXPECT_THAT(in_flight_.describe(start_ + 3s), HasSubstr("step 1: has waited 3.0 s"));
  first.done = true;
  in_flight_.poll(start_ + 5s);
  EXPECT_THAT(in_flight_.describe(start_ + 7s), HasSubstr("step 2: has waited 2.0 s"));
  EXPECT_EQ(in_flight_.exceeded(start_ + 14s), std::nullopt);
  EXPECT_EQ(in_flight_.exceeded(start_ + 16s), Watchdog::Timeout(10s));
}

TEST_F(InFlightExchangesTest, OfSeveralStreamsTheOldestIsTold) {
  Stream slow{true, false}, fast{true, false};
  add(1, slow, "gradients");
  in_flight_.poll(start_);
  add(0, fast, "activations");
  in_flight_.poll(start_ + 2s);
  EXPECT_THAT(in_flight_.describe(start_ + 3s), HasSubstr("gradients: has waited 3.0 s"));
  slow.done = true;
  in_flight_.poll(start_ + 3s);
  EXPECT_THAT(in_flight_.describe(start_ + 3s), HasSubstr("activations: has waited 1.0 s"));
}

// A stream that goes on is never late, however long it has something under way.
TEST_F(InFlightExchangesTest, EveryExchangeHasItsOwnClock) {
  std::vector<Stream> streams(100, Stream{true, false});
  for (std::size_t i = 0; i < streams.size(); ++i) {
    add(0, streams[i], "step");
    if (i > 0) streams[i - 1].done = true;
    in_flight_.poll(start_ + i * 8s);
    EXPECT_EQ(in_flight_.exceeded(start_ + i * 8s + 8s), std::nullopt) << i;
  }
}

// Where nobody looks, what has retired goes when the next one is added: the clock of a later one starts anew.
TEST_F(InFlightExchangesTest, LaunchingTakesOutWhatHasLanded) {
  Stream first{true, false}, second{true, false};
  add(0, first, "step 1");
  in_flight_.poll(start_);
  first.done = true;
  add(0, second, "step 2");
  EXPECT_EQ(in_flight_.longest_wait(start_ + 20s), 0);
  in_flight_.poll(start_ + 20s);
  EXPECT_THAT(in_flight_.describe(start_ + 21s), HasSubstr("step 2: has waited 1.0 s"));
}

TEST_F(InFlightExchangesTest, WithoutALimitItIsToldAndNeverExceeded) {
  Stream stream{true, false};
  add(0, stream, "step 1", Watchdog::Timeout(0));
  in_flight_.poll(start_);
  EXPECT_EQ(in_flight_.exceeded(start_ + 100h), std::nullopt);
  EXPECT_EQ(in_flight_.longest_wait(start_ + 1h), 3600);
}

TEST_F(InFlightExchangesTest, TimeInWhichTheProcessStoodStillDoesNotCount) {
  Stream stream{true, false};
  add(0, stream, "step 1");
  in_flight_.poll(start_);
  in_flight_.exclude_suspended_time(start_ + 1s, start_ + 31s);
  EXPECT_EQ(in_flight_.longest_wait(start_ + 33s), 3);
  EXPECT_EQ(in_flight_.exceeded(start_ + 40s), std::nullopt);
}

// What the watchdog's thread sees through the rank's Watchdog.
TEST_F(InFlightExchangesTest, TheWatchCountsAndTellsThem) {
  Watchdog watchdog;
  watchdog.add(&in_flight_);
  Stream stream{true, false};
  Watchdog::Describe note;
  {
    const Watchdog::ActivityScope step(&watchdog, "optimizer step 17");
    const Watchdog::ActivityScope pass(
        &watchdog, [](const Watchdog::Wait*) { return std::string("ring forward"); }, {},
        [] {
          return [](const Watchdog::Wait* wait) { return "ring forward, step 2, " + wait->to_string(); };
        });
    note = watchdog.note();
    EXPECT_EQ(watchdog.describe(), "optimizer step 17, ring forward");
  }
  in_flight_.add(0, {std::make_unique<HandProgress>(stream), note, {}, 10ms});
  EXPECT_EQ(watchdog.describe(), "waits for nobody");
  EXPECT_EQ(watchdog.poll(), "");
  EXPECT_EQ(watchdog.exceeded(), std::nullopt);
  watchdog.exclude_suspended_time(Clock::now(), Clock::now() - 2s);  // two seconds more
  EXPECT_EQ(watchdog.exceeded(), Watchdog::Timeout(10ms));
  EXPECT_GT(watchdog.longest_wait(), 1.9);
  EXPECT_THAT(watchdog.describe(),
              testing::MatchesRegex("optimizer step 17, ring forward, step 2, has waited 2\\.[0-9] s"));
  {
    const Watchdog::ActivityScope reading(&watchdog, "reads a file");
    EXPECT_THAT(watchdog.describe(),
                testing::StartsWith("reads a file; its device: optimizer step 17, ring forward, step 2"));
  }
  watchdog.abort();
  EXPECT_EQ(ended_, 1);
  error_ = "the peer has closed the connection";
  EXPECT_EQ(watchdog.poll(), error_);
  watchdog.remove(&in_flight_);
  EXPECT_EQ(watchdog.poll(), "");
  EXPECT_EQ(watchdog.describe(), "waits for nobody");
}

// A wait inside a wait is the same one, seen from below: what the outer one waits for counts.
TEST(Watchdog, OfNestedWaitsTheOutermostIsTold) {
  Watchdog watchdog;
  const Watchdog::ActivityScope activity(&watchdog, "step 1");
  const Watchdog::Waiting outer(&watchdog, [] {
    return std::vector<Pending>{
        {.receive = true, .index = 0, .peer = 2, .world_peer = 2, .channel = 1, .bytes = 100}};
  });
  const Watchdog::Waiting inner(&watchdog, [] { return std::vector<Pending>{{}, {}}; });
  EXPECT_THAT(watchdog.describe(), HasSubstr("for 100 bytes from rank 2 on channel 1"));
}

}  // namespace
}  // namespace annulus::comm
