#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/comm/loopback.hpp>

#include "prediction/measurement/links.hpp"
#include "support/error_text.hpp"

namespace annulus::measurement {
namespace {

using simulator::LinkClass;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::array all_patterns = {Pairing::one_way, Pairing::both_ways, Pairing::all, Pairing::ring};

TEST(Patterns, EverySendIsReceivedByItsPeerOnTheRightLink) {
  for (const Topology& topology : {Topology({1}), Topology({4}), Topology({1, 1}), Topology({2, 2}),
                                   Topology({1, 3}), Topology({3, 1, 2}), Topology({4, 4, 4})}) {
    for (const LinkClass link : {LinkClass::intra_node, LinkClass::inter_node}) {
      for (const Pairing pattern : all_patterns) {
        SCOPED_TRACE(topology.to_string() + " " + std::string(simulator::name_of(link)) + " " +
                     std::string(name_of(pattern)));
        int busy = 0;
        for (int rank = 0; rank < topology.ranks(); ++rank) {
          const auto mine = peers(topology, link, pattern, rank);
          if (!mine) continue;
          ++busy;
          ASSERT_NE(mine->to, rank);
          const auto theirs = peers(topology, link, pattern, mine->to);
          ASSERT_TRUE(theirs);
          EXPECT_EQ(theirs->from, rank);
          if (pattern != Pairing::ring) {
            EXPECT_EQ(topology.same_node(rank, mine->to), link == LinkClass::intra_node);
          }
        }
        EXPECT_EQ(busy > 0, applies(topology, link, pattern));
        EXPECT_TRUE((pattern != Pairing::one_way && pattern != Pairing::both_ways) || busy <= 2);
        EXPECT_TRUE(pattern != Pairing::ring || busy == 0 || busy == topology.ranks());
      }
    }
  }
}

TEST(Patterns, AllUsesEveryRankOrEveryCommonPlace) {
  const Topology topology({3, 1, 2});
  EXPECT_EQ(peers(topology, LinkClass::intra_node, Pairing::all, 2), (Peers{0, 1}));
  EXPECT_FALSE(peers(topology, LinkClass::intra_node, Pairing::all, 3));
  EXPECT_EQ(peers(topology, LinkClass::intra_node, Pairing::all, 5), (Peers{4, 4}));
  EXPECT_EQ(peers(topology, LinkClass::inter_node, Pairing::all, 0), (Peers{3, 4}));
  EXPECT_FALSE(peers(topology, LinkClass::inter_node, Pairing::all, 1));
  EXPECT_EQ(peers(Topology({2, 2}), LinkClass::inter_node, Pairing::all, 3), (Peers{1, 1}));
  EXPECT_EQ(peers(topology, LinkClass::intra_node, Pairing::one_way, 1), (Peers{0, 0}));
  EXPECT_EQ(peers(Topology({1, 2}), LinkClass::intra_node, Pairing::one_way, 1), (Peers{2, 2}));
  EXPECT_EQ(peers(topology, LinkClass::inter_node, Pairing::one_way, 3), (Peers{0, 0}));
}

LinkOptions small_links() {
  LinkOptions options;
  options.min_bytes = 100;
  options.max_bytes = 7000;
  options.sampling = {.repetitions = 3, .seconds = 5};
  return options;
}

TEST(Links, EveryPatternAndSizeIsMeasuredOnceAndTheSameOnAllRanks) {
  std::array<std::vector<double>, 4> medians;
  comm::run_loopback(Topology({2, 2}), [&](comm::Communicator& communicator) {
    const LinkMeasurement measurement = measure_links(communicator, small_links());
    EXPECT_THAT(measurement.notes, IsEmpty());
    ASSERT_EQ(measurement.points.size(), (3 + 4) * 4u);
    for (const LinkPoint& point : measurement.points) {
      EXPECT_GT(point.seconds.min, 0);
      EXPECT_LE(point.seconds.min, point.seconds.median);
      EXPECT_LE(point.seconds.median, point.seconds.max);
      EXPECT_GE(point.seconds.repetitions, 1);
      EXPECT_LE(point.seconds.repetitions, 3);
      EXPECT_DOUBLE_EQ(point.bandwidth() * point.seconds.median, static_cast<double>(point.bytes));
      medians[communicator.rank()].push_back(point.seconds.median);
    }
    const auto ring = measurement.timings(LinkClass::inter_node, Pairing::ring);
    ASSERT_EQ(ring.size(), 4u);
    EXPECT_EQ(ring.front().bytes, 100);
    EXPECT_EQ(ring.back().bytes, 6400);
    EXPECT_THAT(measurement.timings(LinkClass::intra_node, Pairing::ring), IsEmpty());
  });
  for (const auto& list : medians) EXPECT_EQ(list, medians[0]);
}

TEST(Links, SizesThatTakeTooLongAreLeftOut) {
  comm::run_loopback(Topology({2}), [&](comm::Communicator& communicator) {
    LinkOptions options = small_links();
    options.sampling.seconds = 1e-9;
    const LinkMeasurement measurement = measure_links(communicator, options);
    EXPECT_EQ(measurement.points.size(), 3u) << "the smallest is always measured";
    ASSERT_EQ(measurement.notes.size(), 6u);
    EXPECT_THAT(measurement.notes[0],
                HasSubstr("intra_node one way: messages of 400 bytes and more take longer than 1e-09 s"));
    // A line through one point is none.
    EXPECT_THAT(measurement.notes[1], HasSubstr("intra_node one way: one size"));
  });
}

TEST(Links, SizesThatDoNotFitInMemoryAreLeftOut) {
  comm::run_loopback(Topology({1, 1}), [&](comm::Communicator& communicator) {
    LinkOptions options = small_links();
    options.memory = 15000;  // a quarter for the two buffers of each of two ranks: 1875 bytes
    options.patterns = {Pairing::all};
    const LinkMeasurement measurement = measure_links(communicator, options);
    ASSERT_EQ(measurement.points.size(), 3u);
    EXPECT_EQ(measurement.points.back().bytes, 1600);
    ASSERT_EQ(measurement.notes.size(), 1u);
    EXPECT_THAT(measurement.notes[0], HasSubstr("more than 1600 bytes do not fit in memory"));
  });
}

TEST(Links, OneRankHasNone) {
  EXPECT_THAT(measure_links(*comm::make_null(), small_links()).points, IsEmpty());
}

TEST(Links, BadOptionsAreNamed) {
  const auto error = [](auto change) {
    LinkOptions options;
    change(options);
    return error_text([&] { options.check(); });
  };
  EXPECT_THAT(error([](LinkOptions& o) { o.min_bytes = 0; }), HasSubstr("--min-bytes is 0"));
  EXPECT_THAT(error([](LinkOptions& o) { o.max_bytes = 512; }), HasSubstr("--max-bytes is 512"));
  EXPECT_THAT(error([](LinkOptions& o) { o.max_bytes = std::int64_t{1} << 50; }), HasSubstr("--max-bytes"));
  EXPECT_THAT(error([](LinkOptions& o) { o.sampling.repetitions = 0; }), HasSubstr("--repetitions is 0"));
  EXPECT_THAT(error([](LinkOptions& o) { o.sampling.seconds = 0; }), HasSubstr("--seconds is 0"));
}

}  // namespace
}  // namespace annulus::measurement
