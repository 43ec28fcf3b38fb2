// Transfers for which streams wait: which is the oldest, since when, what is said of it. Without a device.
#include <gmock/gmock.h>

#include <chrono>
#include <memory>
#include <string>

#include "comm/flights.hpp"

namespace annulus::comm {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using Clock = Watch::Clock;

/// Where the streams are, by hand.
struct Stream {
  bool begun = false, done = false;
};

class HandMarks final : public Flights::Marks {
 public:
  explicit HandMarks(const Stream& stream) : stream_(stream) {}
  bool begun() const override { return stream_.begun; }
  bool done() const override { return stream_.done; }

 private:
  const Stream& stream_;
};

class FlightsTest : public testing::Test {
 protected:
  void launch(int lane, const Stream& stream, const std::string& what, Watch::Limit limit = 10s) {
    flights_.launch(lane,
                    {std::make_unique<HandMarks>(stream),
                     [what](const Watch::Wait* wait) { return what + ": " + wait->to_string(); },
                     {{.receive = true, .index = 0, .peer = 1, .job_peer = 3, .channel = lane, .bytes = 64}},
                     limit});
  }

  std::string error_;
  int ended_ = 0;
  Flights flights_{2, [this] { return error_; }, [this] { ++ended_; }};
  const Clock::time_point start_ = Clock::now();
};

TEST_F(FlightsTest, WaitsOnlyFromTheMomentOnAtWhichTheRankItselfIsReady) {
  Stream stream;
  launch(0, stream, "step 1");
  EXPECT_EQ(flights_.look(start_), "");
  EXPECT_EQ(flights_.longest_wait(start_ + 1h), 0) << "the rank itself computes";
  EXPECT_EQ(flights_.exceeded(start_ + 1h), std::nullopt);
  EXPECT_EQ(flights_.tell(start_ + 1h), "");
  stream.begun = true;
  flights_.look(start_ + 1h);
  EXPECT_EQ(flights_.longest_wait(start_ + 1h + 4s), 4);
  EXPECT_EQ(flights_.exceeded(start_ + 1h + 10s), std::nullopt);
  EXPECT_EQ(flights_.exceeded(start_ + 1h + 11s), Watch::Limit(10s));
  EXPECT_EQ(flights_.tell(start_ + 1h + 11s),
            "step 1: has waited 11.0 s for 64 bytes from rank 3 on channel 0");
  stream.done = true;
  flights_.look(start_ + 1h + 12s);
  EXPECT_EQ(flights_.longest_wait(start_ + 2h), 0);
  EXPECT_EQ(flights_.tell(start_ + 2h), "");
}

// The streams of a lane's exchanges are one: the second does not wait for others before the first has ended.
TEST_F(FlightsTest, TheFirstOfALaneIsTheOneThatWaits) {
  Stream first{true, false}, second{true, false};
  launch(0, first, "step 1");
  launch(0, second, "step 2");
  flights_.look(start_);
  EXPECT_THAT(flights_.tell(start_ + 3s), HasSubstr("step 1: has waited 3.0 s"));
  first.done = true;
  flights_.look(start_ + 5s);
  EXPECT_THAT(flights_.tell(start_ + 7s), HasSubstr("step 2: has waited 2.0 s"));
  EXPECT_EQ(flights_.exceeded(start_ + 14s), std::nullopt);
  EXPECT_EQ(flights_.exceeded(start_ + 16s), Watch::Limit(10s));
}

TEST_F(FlightsTest, OfSeveralLanesTheOldestIsTold) {
  Stream slow{true, false}, fast{true, false};
  launch(1, slow, "gradients");
  flights_.look(start_);
  launch(0, fast, "activations");
  flights_.look(start_ + 2s);
  EXPECT_THAT(flights_.tell(start_ + 3s), HasSubstr("gradients: has waited 3.0 s"));
  slow.done = true;
  flights_.look(start_ + 3s);
  EXPECT_THAT(flights_.tell(start_ + 3s), HasSubstr("activations: has waited 1.0 s"));
}

// A lane that flows is never late, however long it has something under way.
TEST_F(FlightsTest, EveryExchangeHasItsOwnClock) {
  std::vector<Stream> streams(100, Stream{true, false});
  for (std::size_t i = 0; i < streams.size(); ++i) {
    launch(0, streams[i], "step");
    if (i > 0) streams[i - 1].done = true;
    flights_.look(start_ + i * 8s);
    EXPECT_EQ(flights_.exceeded(start_ + i * 8s + 8s), std::nullopt) << i;
  }
}

// Where nobody looks, what has landed goes with the next launch: the clock of a later one starts anew.
TEST_F(FlightsTest, LaunchingTakesOutWhatHasLanded) {
  Stream first{true, false}, second{true, false};
  launch(0, first, "step 1");
  flights_.look(start_);
  first.done = true;
  launch(0, second, "step 2");
  EXPECT_EQ(flights_.longest_wait(start_ + 20s), 0);
  flights_.look(start_ + 20s);
  EXPECT_THAT(flights_.tell(start_ + 21s), HasSubstr("step 2: has waited 1.0 s"));
}

TEST_F(FlightsTest, WithoutALimitItIsToldAndNeverExceeded) {
  Stream stream{true, false};
  launch(0, stream, "step 1", Watch::Limit(0));
  flights_.look(start_);
  EXPECT_EQ(flights_.exceeded(start_ + 100h), std::nullopt);
  EXPECT_EQ(flights_.longest_wait(start_ + 1h), 3600);
}

TEST_F(FlightsTest, TimeInWhichTheProcessStoodStillDoesNotCount) {
  Stream stream{true, false};
  launch(0, stream, "step 1");
  flights_.look(start_);
  flights_.forgive(start_ + 1s, start_ + 31s);
  EXPECT_EQ(flights_.longest_wait(start_ + 33s), 3);
  EXPECT_EQ(flights_.exceeded(start_ + 40s), std::nullopt);
}

// What the guard's thread sees through the rank's Watch.
TEST_F(FlightsTest, TheWatchCountsAndTellsThem) {
  Watch watch;
  watch.add(&flights_);
  Stream stream{true, false};
  Watch::Tell note;
  {
    const Watch::Doing update(&watch, "update 17");
    const Watch::Doing pass(
        &watch, [](const Watch::Wait*) { return std::string("ring forward"); }, {},
        [] { return [](const Watch::Wait* wait) { return "ring forward, step 2, " + wait->to_string(); }; });
    note = watch.note();
    EXPECT_EQ(watch.tell(), "update 17, ring forward");
  }
  flights_.launch(0, {std::make_unique<HandMarks>(stream), note, {}, 10ms});
  EXPECT_EQ(watch.tell(), "waits for nobody");
  EXPECT_EQ(watch.look(), "");
  EXPECT_EQ(watch.exceeded(), std::nullopt);
  watch.forgive(Clock::now(), Clock::now() - 2s);  // two seconds more
  EXPECT_EQ(watch.exceeded(), Watch::Limit(10ms));
  EXPECT_GT(watch.longest_wait(), 1.9);
  EXPECT_THAT(watch.tell(), testing::MatchesRegex("update 17, ring forward, step 2, has waited 2\\.[0-9] s"));
  {
    const Watch::Doing reading(&watch, "reads a file");
    EXPECT_THAT(watch.tell(),
                testing::StartsWith("reads a file; its device: update 17, ring forward, step 2"));
  }
  watch.abort();
  EXPECT_EQ(ended_, 1);
  error_ = "the peer has closed the connection";
  EXPECT_EQ(watch.look(), error_);
  watch.remove(&flights_);
  EXPECT_EQ(watch.look(), "");
  EXPECT_EQ(watch.tell(), "waits for nobody");
}

// A wait inside a wait is the same one, seen from below: what the outer one waits for counts.
TEST(Watch, OfNestedWaitsTheOutermostIsTold) {
  Watch watch;
  const Watch::Doing doing(&watch, "step 1");
  const Watch::Waiting outer(&watch, [] {
    return std::vector<Pending>{
        {.receive = true, .index = 0, .peer = 2, .job_peer = 2, .channel = 1, .bytes = 100}};
  });
  const Watch::Waiting inner(&watch, [] { return std::vector<Pending>{{}, {}}; });
  EXPECT_THAT(watch.tell(), HasSubstr("for 100 bytes from rank 2 on channel 1"));
}

}  // namespace
}  // namespace annulus::comm
