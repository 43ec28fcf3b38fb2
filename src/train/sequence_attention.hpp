#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <annulus/distributed/attention.hpp>
#include <annulus/train/config.hpp>

namespace annulus::train {

/// The distributed attention of a run, whose mask may follow the documents of each sequence.
class SequenceAttention {
 public:
  SequenceAttention(const HostExec& exec, comm::Communicator& context, const Config& config);

  /// This rank's rows of every sequence.
  PositionMap rows() const;

  /// The attention for a sequence whose documents start at `document_starts`; plans are made anew only where
  /// they change.
  distributed::Attention<HostExec, float>& for_sequence(const HostExec& exec,
                                                        std::span<const std::int64_t> document_starts);

  /// Of every sequence; chosen where the configuration says auto.
  const std::string& schedule() const { return schedule_; }
  const Layout& layout() const { return problem_.layout; }

  /// Unmasked (query, key) pairs of one head of the sequence that for_sequence saw last, over all ranks.
  std::int64_t pairs() const { return pairs_; }

  /// Seconds that for_sequence has spent on new masks and plans since the last call. They count on every rank
  /// alike: all agree on the plans before they go on.
  double take_planning_seconds() { return std::exchange(planning_seconds_, 0.0); }

  distributed::Attention<HostExec, float>& attention() { return *attention_; }

 private:
  void choose(const Config& config);
  void set_mask(const HostExec& exec, Mask mask);

  comm::Communicator& context_;
  std::string schedule_, mask_text_;
  attention::Kernel kernel_;
  std::chrono::milliseconds stall_limit_;
  bool follows_documents_;
  std::vector<std::int64_t> starts_;  // of the sequence whose plans are set
  plan::Problem problem_;
  std::int64_t pairs_ = 0;
  double planning_seconds_ = 0;
  std::optional<distributed::Attention<HostExec, float>> attention_;
};

}  // namespace annulus::train
