// Slow ranks and links: who is named, when, and that nobody else is.
#include "training/run/stragglers.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "attention/comm/throttled_wire.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

/// Optimizer steps of a job on nodes of four ranks in a ring, with the noise of sound machines.
struct Job {
  int ranks = 8;
  std::uint64_t seed = 1;
  double compute_seconds = 0.05;  // of a rank and step
  double noise = 0.03;            // of times, from step to step
  double spread = 0.01;           // of clocks, for ever
  double stops = 0.03;            // share of the steps in which a rank or a link stops for a moment
  bool uneven_work = false;       // documents differ from step to step
  std::function<double(int step, int rank)> slowness = [](int, int) { return 1.0; };
  std::function<double(int step, int sender)> link_slowness = [](int, int) { return 1.0; };

  Topology topology() const { return Topology::uniform(ranks, 4); }

  struct Named {
    int step = 0;
    Straggler straggler;
    std::string to_string() const {
      return fmt::format("step {}: rank {}, to rank {}: {}", step, straggler.rank,
                         straggler.receiver.value_or(-1), straggler.slowness);
    }
  };
  /// What is named in `steps` steps, of which the first has number 1.
  std::vector<Named> named(int steps) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    // Some clocks are always a little slower. Now and then a rank stops for a moment.
    std::vector<double> clocks;
    for (int rank = 0; rank < ranks; ++rank) clocks.push_back(std::exp(spread * normal(random)));
    const auto noisy = [&](double value) {
      const bool stopped = std::uniform_real_distribution<double>(0, 1)(random) < stops;
      return value * std::exp(noise * normal(random)) * (stopped ? 2 : 1);
    };
    std::vector<Named> all;
    Stragglers stragglers(topology());
    for (int step = 1; step <= steps; ++step) {
      std::vector<RankTimes> times(static_cast<std::size_t>(ranks));
      for (int rank = 0; rank < ranks; ++rank) {
        RankTimes& mine = times[static_cast<std::size_t>(rank)];
        const double work = uneven_work ? 0.6 + 0.8 * std::generate_canonical<double, 53>(random) : 1;
        mine.compute = {
            noisy(compute_seconds * work * clocks[static_cast<std::size_t>(rank)] * slowness(step, rank)),
            1e9 * work};
        const int next = (rank + 1) % ranks;
        const double rate = topology().same_node(rank, next) ? 300e9 : 50e9;
        const std::int64_t bytes = 100 << 20;
        const double seconds = noisy(double(bytes) / rate * link_slowness(step, rank));
        // The receiver was there first, and cannot tell.
        mine.links[0] = {next, false, 10, bytes, seconds};
        times[static_cast<std::size_t>(next)].links[RankTimes::links_each_way] = {rank, true, 10, bytes,
                                                                                  3 * seconds};
      }
      for (const Straggler& straggler : stragglers.add(times).named) all.push_back({step, straggler});
    }
    return all;
  }
};

TEST(Stragglers, QuietStepsNameNobody) {
  for (const int ranks : {2, 3, 8, 64})
    for (std::uint64_t seed = 1; seed <= 20; ++seed)
      for (const double noise : {0.02, 0.05, 0.1, 0.2})
        for (const bool uneven : {false, true}) {
          Job job{.ranks = ranks, .seed = seed, .noise = noise, .uneven_work = uneven};
          for (const Job::Named& named : job.named(200))
            ADD_FAILURE() << ranks << " ranks, seed " << seed << ", noise " << noise << ": "
                          << named.to_string();
        }
}

TEST(Stragglers, ARankThatIsATenthSlowIsNamedOnceWithinTwentySteps) {
  for (const int ranks : {2, 3, 8, 64})
    for (std::uint64_t seed = 1; seed <= 10; ++seed)
      for (const int since : {1, 101}) {
        const int slow = static_cast<int>(seed) % ranks;
        Job job{
            .ranks = ranks, .seed = seed, .noise = 0.01, .spread = 0.003, .stops = 0.01, .uneven_work = true};
        job.slowness = [&](int step, int rank) { return rank == slow && step >= since ? 1.1 : 1; };
        const auto named = job.named(200);
        ASSERT_EQ(named.size(), 1) << ranks << " ranks, seed " << seed;
        EXPECT_EQ(named[0].straggler.rank, slow);
        EXPECT_FALSE(named[0].straggler.receiver);
        EXPECT_NEAR(named[0].straggler.slowness, 1.1, 0.04);
        EXPECT_GE(named[0].step, since);
        EXPECT_LT(named[0].step, since + 20);
      }
}

TEST(Stragglers, ALinkAtHalfOfItsRateIsNamedOnceWithinTwentySteps) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed)
    for (const int sender : {1, 3}) {  // inside of a node, between two
      Job job{.seed = seed};
      job.link_slowness = [&](int step, int from) { return from == sender && step > 50 ? 2 : 1; };
      const auto named = job.named(200);
      ASSERT_EQ(named.size(), 1) << "seed " << seed << ", at last " << named.back().to_string();
      EXPECT_EQ(named[0].straggler.rank, sender);
      EXPECT_EQ(named[0].straggler.receiver, sender + 1);
      EXPECT_NEAR(named[0].straggler.slowness, 2, 0.2);
      EXPECT_GT(named[0].step, 50);
      EXPECT_LE(named[0].step, 70);
    }
}

TEST(Stragglers, OneThatHasBeenFastIsNamedAgain) {
  Job job{.noise = 0.01};
  job.slowness = [](int step, int rank) { return rank == 2 && (step < 50 || step > 100) ? 1.2 : 1; };
  const auto named = job.named(150);
  ASSERT_EQ(named.size(), 2);
  EXPECT_LE(named[0].step, 20);
  EXPECT_GT(named[1].step, 100);
  EXPECT_LE(named[1].step, 120);
}

TEST(Stragglers, MicrosecondsAndShortKernelsNameNobody) {
  Job job{.compute_seconds = 1e-4};
  job.slowness = [](int, int rank) { return rank == 2 ? 3 : 1; };
  EXPECT_TRUE(job.named(100).empty());

  // A rank with a tenth of the work takes twice as long for each pair.
  Stragglers stragglers(Topology::uniform(4, 4));
  for (int step = 0; step < 100; ++step) {
    std::vector<RankTimes> times(4);
    for (RankTimes& mine : times) mine.compute = {0.1, 1e9};
    times[0].compute = {0.02, 1e8};
    EXPECT_TRUE(stragglers.add(times).named.empty());
  }
}

// In a ring of three with messages that kernels hide, rank 2 computes 10 ms longer before each exchange:
// ranks 0 and 1 both wait for it in the exchange in which they also send to one another, and no end of that
// link sees how fast it is.
TEST(Stragglers, ALinkWhoseRanksWaitForASlowOneIsNotBlamed) {
  Stragglers stragglers(Topology::uniform(3, 3));
  std::vector<Straggler> named;
  for (int step = 0; step < 100; ++step) {
    std::vector<RankTimes> times(3);
    for (RankTimes& mine : times) mine.compute = {0.4, 1e9};
    times[2].compute.seconds = 0.44;
    constexpr std::int64_t bytes = 1 << 20;
    const auto link = [&](int from, int to, double seconds) {
      times[static_cast<std::size_t>(from)].links[0] = {to, false, 4, bytes, seconds};
      times[static_cast<std::size_t>(to)].links[RankTimes::links_each_way] = {from, true, 4, bytes, seconds};
    };
    link(0, 1, 0.011);
    link(1, 2, 0.001);
    link(2, 0, 0.001);
    for (const Straggler& straggler : stragglers.add(times).named) named.push_back(straggler);
  }
  ASSERT_EQ(named.size(), 1);
  EXPECT_EQ(named[0].rank, 2);
  EXPECT_FALSE(named[0].receiver);
}

TEST(Stragglers, TheSlowestOfAStepAreTold) {
  Stragglers stragglers(Topology::uniform(4, 2));
  std::vector<RankTimes> times(4);
  for (RankTimes& mine : times) mine.compute = {0.1, 1e9};
  times[3].compute.seconds = 0.14;
  for (const int sender : {0, 1, 2, 3})
    times[static_cast<std::size_t>(sender)].links[0] = {(sender + 1) % 4, false, 1, 1 << 20,
                                                        sender == 1 ? 0.03 : 0.02};
  EXPECT_FALSE(stragglers.add(times).slowest.rank) << "the first step warms up";
  const Slowest slowest = stragglers.add(times).slowest;
  ASSERT_TRUE(slowest.rank);
  EXPECT_EQ(slowest.rank->rank, 3);
  EXPECT_DOUBLE_EQ(slowest.rank->compute_share, 0.14 / 0.11);
  ASSERT_FALSE(slowest.links.empty());
  EXPECT_EQ(slowest.links[0].sender, 1);
  EXPECT_EQ(slowest.links[0].receiver, 2);
  EXPECT_DOUBLE_EQ(slowest.links[0].rate, (1 << 20) / 0.03);

  std::vector<RankTimes> alone(1);
  alone[0].compute = {0.1, 1e9};
  Stragglers of_one(Topology::uniform(1, 1));
  for (int step = 0; step < 3; ++step) EXPECT_FALSE(of_one.add(alone).slowest.rank);
}

/// Runs on three ranks whose kernels sleep and whose messages travel over slow links.
class SlowRun : public TinyTest {
 protected:
  static constexpr int steps = 20;

  /// Seconds that local kernels of `slow_rank` take longer; the link from `slow_sender` has half the rate.
  Config run(int slow_rank, int slow_sender, const char* mask = "causal") const {
    Config config = tiny_.config("run", {"data.sequence_length=1536", "model.kv_heads=2", "model.head_dim=32",
                                         "train.steps=" + std::to_string(steps), "checkpoint.every=0",
                                         std::string("attention.mask=") + mask});
    Hooks hooks;
    hooks.attention = [&](executor::Settings& settings, int rank) {
      // Of a pair, such that a step of a rank computes for 0.15 s.
      const double pairs = 1536.0 * 1537 / 2 * config.model.heads / ranks;
      const double seconds = 0.15 / (7 * pairs) * (rank == slow_rank ? 1.1 : 1);
      settings.synthetic_kernel = [=](const executor::LocalWork& work) {
        const double products = work.pass == plan::Pass::forward ? 2 : 5;
        std::this_thread::sleep_for(std::chrono::duration<double>(seconds * products * double(work.pairs)));
      };
    };
    const auto rate = [&](int from, int) { return from == slow_sender ? 20e6 : 40e6; };
    comm::ThrottledWire wire(rate);
    comm::run_loopback(Topology::uniform(ranks, ranks),
                       [&](comm::Communicator& world) { train(world, config, {}, {}, hooks); },
                       {.wire = &wire});
    return config;
  }

  /// The slowest rank's of every step but the first, which has none, sorted.
  static std::vector<double> compute_shares(const Config& config) {
    std::vector<double> shares;
    for (const nlohmann::json& record : records(config)) {
      EXPECT_EQ(record.contains("slowest_compute_share"), record.at("step") > 1);
      if (record.at("step") > 1) shares.push_back(record.at("slowest_compute_share"));
    }
    EXPECT_EQ(shares.size(), steps - 1);
    std::ranges::sort(shares);
    return shares;
  }

  /// Warnings of slow ranks and links.
  static std::vector<std::string> warnings(const Config& config) {
    std::vector<std::string> found;
    std::istringstream log(log_of(config));
    for (std::string line; std::getline(log, line);)
      if (line.find(" is slow: ") != std::string::npos) found.push_back(line);
    return found;
  }

  static constexpr int ranks = 3;
};

TEST_F(SlowRun, NamesTheRankWhoseKernelsTakeATenthLongerSlow) {
  const Config config = run(1, -1);
  EXPECT_THAT(warnings(config), testing::ElementsAre(AllOf(HasSubstr("warning rank 1 (CPU of "),
                                                           HasSubstr("attention kernels took 1."))));
  int others = 0;
  for (const nlohmann::json& record : records(config))
    if (record.at("step") > 1 && record.at("slowest_rank") != 1) ++others;
  EXPECT_LE(others, 2);
  const std::vector<double> shares = compute_shares(config);
  EXPECT_NEAR(shares[shares.size() / 2], 1.1 / (3.1 / 3), 0.02);
}

TEST_F(SlowRun, NamesTheLinkThatHasHalfTheRateSlow) {
  const Config config = run(-1, 2);
  EXPECT_THAT(warnings(config), testing::ElementsAre(AllOf(HasSubstr("warning the link from rank 2 (CPU of "),
                                                           HasSubstr(" to rank 0 (CPU of "))));
  for (const nlohmann::json& record : records(config)) {
    if (record.at("step") == 1) continue;
    const auto& link = record.at("slowest_link");
    EXPECT_EQ(link.at("sender"), 2);
    EXPECT_EQ(link.at("receiver"), 0);
    EXPECT_GT(link.at("bytes_per_second"), 10e6);
    EXPECT_LT(link.at("bytes_per_second"), 20.1e6);
    std::map<std::pair<int, int>, double> rates;
    for (const auto& [sender, receiver, rate] :
         record.at("link_rates").get<std::vector<std::tuple<int, int, double>>>())
      rates[{sender, receiver}] = rate;
    ASSERT_EQ(rates.size(), ranks);
    EXPECT_EQ(rates.at({2, 0}), link.at("bytes_per_second"));
    for (const auto& [sender, receiver] : {std::pair(0, 1), std::pair(1, 2)}) {
      EXPECT_GT(rates.at({sender, receiver}), 21e6);
      EXPECT_LT(rates.at({sender, receiver}), 40.1e6);
    }
  }
}

TEST_F(SlowRun, NamesNobodyWhereNoneIsSlow) {
  for (const char* mask : {"causal", "documents"}) {  // of which ranks have unequal shares
    SCOPED_TRACE(mask);
    const Config config = run(-1, -1, mask);
    EXPECT_THAT(warnings(config), testing::IsEmpty());
    const std::vector<double> shares = compute_shares(config);
    EXPECT_LT(shares[shares.size() / 2], 1.04);
    fs::remove_all(config.run.folder);
  }
}

}  // namespace
}  // namespace annulus::training::test
