#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "training/data/dataset.hpp"
#include "training/data/order.hpp"

namespace annulus::data {

struct LoaderOptions {
  RankRows rows;              ///< those of this rank
  std::int64_t groups = 1;    ///< data-parallel groups; together they read each sequence once an epoch
  std::int64_t group = 0;     ///< which of them this rank belongs to
  std::uint64_t seed = 0;     ///< of the order of the sequences
  bool shuffle = true;        ///< false: sequences come as stored
  std::int64_t prefetch = 2;  ///< sequences read ahead by a thread; 0 reads when asked
  StreamState start;          ///< where to go on
};

/// Gives a rank its part of one sequence after the other. With G groups, group g is given the sequences g, g
/// + G, … of the order (counted from the start state), so that all groups take the same state from step to
/// step.
class Loader {
 public:
  Loader(std::shared_ptr<const TokenDataset> dataset, const LoaderOptions& options);

  /// Waits for a read that is under way, drops what was read ahead.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next sequence. Does not depend on `prefetch`. Throws what reading threw, at this and every later
  /// call.
  Sequence next();

  /// Where a new Loader goes on with the sequence that next() gives next, in all groups.
  StreamState state() const { return taken_; }

 private:
  Sequence read(StreamState state) const;
  void read_ahead();

  const std::shared_ptr<const TokenDataset> dataset_;
  const LoaderOptions options_;
  const SequenceOrder order_;
  StreamState taken_;  // what next() gave is before this

  // The thread fills `ready_` ahead of next(); both ends hold the mutex. Reading itself happens without it.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Sequence> ready_;
  std::exception_ptr failure_;  // written by the thread under the mutex, before it ends
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace annulus::data
