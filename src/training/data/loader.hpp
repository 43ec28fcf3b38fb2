#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>

#include "training/data/blend/blend.hpp"
#include "training/data/dataset.hpp"
#include "training/data/order.hpp"

namespace annulus::data {

/// How the sequences of a global batch are shared out to data-parallel groups.
struct Dealing {
  /// What a sequence takes, by its documents; the groups of a batch are to have as much. Empty: groups take
  /// sequences in turns.
  std::function<std::int64_t(std::span<const std::int64_t> document_starts)> work = {};
  /// Sequences of a group in batch `number` from where reading starts, which is 0. With `work`.
  std::function<std::int64_t(std::int64_t number)> sequences = {};
};

struct LoaderOptions {
  RankRows rows;              ///< rows of this rank
  std::int64_t groups = 1;    ///< data-parallel groups; together they read each sequence once an epoch
  std::int64_t group = 0;     ///< which of them this rank belongs to
  std::uint64_t seed = 0;     ///< of the order of the sequences
  bool shuffle = true;        ///< false: sequences come as stored
  std::int64_t prefetch = 2;  ///< sequences read ahead by a thread; 0 reads when asked
  BlendState start;           ///< where to go on; empty: at the beginning
  Dealing dealing = {};
};

/// Gives a rank its part of one sequence after the other. With G groups, group g is given the sequences g, g
/// + G, … of the order (counted from the start state), so that all groups take the same state from step to
/// step. Or those of each batch of G · Dealing::sequences that `deal` gives it, in their order.
class Loader {
 public:
  Loader(const Blend& data, const LoaderOptions& options);

  /// Waits for a read that is under way, drops what was read ahead. Where readers wait for one another
  /// (RankRows::leave) all ranks' loaders end here, unless an exception ends this one alone.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next sequence. Does not depend on `prefetch`. Throws what reading threw, at this and every later
  /// call.
  Sequence next();

  /// Where a new Loader goes on with the sequence that next() gives next, in all groups.
  const BlendState& state() const { return taken_; }

 private:
  Sequence read_next();
  void deal_batch();
  bool read_one_ahead();
  void read_ahead();

  const Blend data_;
  const LoaderOptions options_;
  const BlendOrder order_;
  const int exceptions_ = std::uncaught_exceptions();
  BlendState taken_;  // what next() gave is before this
  // Of whoever reads, the thread or next():
  BlendState batch_;                       // where the sequences of the next batch begin
  std::int64_t batches_ = 0;               // that were dealt
  std::deque<BlendOrder::Draw> of_batch_;  // this group's sequences that are left of a batch

  // The thread fills `ready_` ahead of next(); both ends hold the mutex. Reading itself happens without it.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Sequence> ready_;
  std::exception_ptr failure_;  // written by the thread under the mutex, before it ends
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace annulus::data
