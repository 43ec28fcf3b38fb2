#pragma once

#include <array>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/cluster/topology/topology.hpp>

#include "attention/comm/gpu_ids.hpp"
#include "attention/comm/message_times.hpp"

/// Ranks and links that are slower than their like: a step takes as long as the slowest of them.
namespace annulus::training {

/// The local kernels of attention on one rank in an optimizer step.
struct ComputeTime {
  double seconds = 0;  ///< of the stream on a device
  /// Matrix products, two in a forward pass and five in a backward, times the unmasked (query, key, head)
  /// that they are for; 0: not known.
  double work = 0;
};

/// What a rank tells the others of an optimizer step, as bytes.
struct RankTimes {
  static constexpr std::size_t links_each_way = 8;
  ComputeTime compute;
  /// The rank's slowest links in either direction; entries without messages say nothing.
  std::array<comm::MessageTime, 2 * links_each_way> links;
};

/// What was slowest in an optimizer step; nothing where it was not measured, or where there is one alone.
struct Slowest {
  static constexpr std::size_t most_links = 64;
  struct Rank {
    int rank = 0;
    double compute_share = 1;  ///< its seconds for each unit of work over the mean of the ranks
  };
  struct Link {
    int sender = 0, receiver = 0;
    double rate = 0;  ///< bytes/s of its fastest message (comm::MessageTimes)
  };
  std::optional<Rank> rank;
  /// The most_links slowest, from the slowest on, each compared with the other links of its kind.
  std::vector<Link> links;
};

/// A rank, or the link from it to another one, that stays slow.
struct Straggler {
  int rank = 0;
  std::optional<int> receiver = std::nullopt;  ///< of a link
  double slowness = 1;  ///< how many times as long as the others it takes, the median of the steps
  double rate = 0;      ///< of a link, bytes/s in the last step
};

/// Judges optimizer steps one after the other. The ranks of each step are compared with one another, so what
/// slows all alike is no matter; what is noise does not last; and what costs less than clocks and schedulers
/// of an idle machine counts as nothing.
///
/// - A rank is slow by its seconds for each unit of work, compared with the median of the other ranks. Ranks
///   with less than half the median work are left out: short kernels take longer for each pair.
/// - A link is slow by its rate, compared with the median of the other links of its kind (inside of nodes,
///   between them). The rate is that of the fastest message that either of its ranks has timed in the step
///   (comm::MessageTimes says why). A message may still be late by what slow ranks compute longer between two
///   messages, in every step: what that can explain is not the link's.
///
/// What was slow in nearly all of the last steps, and by more than these differ from one another, is named,
/// once, until it has been as fast as the others.
class Stragglers {
 public:
  explicit Stragglers(const Topology& world);

  struct Judgement {
    Slowest slowest;
    std::vector<Straggler> named;  ///< from this step on
  };
  /// The next optimizer step, rank by rank.
  Judgement add(std::span<const RankTimes> ranks);

 private:
  /// From which slowness on something is named, and what is more than the spread of sound machines.
  struct Limits {
    double named, noticed;
  };
  /// The slowness of the last steps.
  class Window {
   public:
    /// True where it is named from now on. Steps in which it is `costly` alone speak for that.
    bool add(double slowness, bool costly, const Limits& limits);
    double median() const;

   private:
    std::deque<std::pair<double, bool>> steps_;  ///< with costly
    bool named_ = false;
  };
  using Link = std::pair<int, int>;  ///< sender, receiver

  void judge_ranks(std::span<const RankTimes> ranks, Judgement& judgement);
  void judge_links(std::span<const RankTimes> ranks, Judgement& judgement);
  /// Seconds by which some rank is later than the others in every step.
  double lateness(std::span<const RankTimes> ranks);

  Topology topology_;
  std::map<int, Window> ranks_;
  std::map<Link, Window> links_;
  std::vector<std::deque<double>> late_;  ///< by rank: seconds of compute beyond the median of the ranks
  bool warm_ = false;                     ///< the first step has been: it warms up
};

/// Gathers the times of all ranks and lets rank 0 judge them, which logs what it names.
class StragglerWatch {
 public:
  /// Collective, as is observe. `world` outlives the object.
  StragglerWatch(comm::Communicator& world, bool on_gpu);

  /// At the end of an optimizer step: what was slowest in it, on rank 0 alone. One all-gather of some hundred
  /// bytes a rank.
  Slowest observe(const ComputeTime& mine);

 private:
  std::string warning(const Straggler& straggler) const;
  std::string who(int rank) const;

  comm::Communicator& world_;
  bool on_gpu_;
  std::vector<comm::GpuId> places_;
  Stragglers stragglers_;
};

}  // namespace annulus::training
