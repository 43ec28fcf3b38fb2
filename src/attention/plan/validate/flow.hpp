#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "attention/plan/proof.hpp"
#include "attention/plan/validate/contents.hpp"
#include "attention/plan/validate/diagnostics.hpp"

namespace annulus::plan::validation {

/// Follows the contents of one rank's slots through its steps, which are well formed: what is read is there,
/// nothing is overwritten in use, and every contribution to a sum goes on exactly once or rests in the
/// owner's local buffer.
class SlotFlow {
 public:
  SlotFlow(const Premises& premises, int rank, Diagnostics& diagnostics);

  /// The next step.
  void enter(int number, const Step& step);
  /// Checks, after the last step, that no sum is left on the way.
  void finish();

 private:
  /// A posted transfer.
  struct PostedTransfer {
    Transfer transfer;
    std::int64_t number = 0;       // among this rank's transfers
    std::int64_t index = 0;        // of o and lse: among those of this tensor from that rank on that channel
    bool arrived = false;          // its receive action has run
    std::uint64_t source() const;  // of o and lse: names the two messages that belong together
  };
  struct Waits {
    std::vector<PostedTransfer> sends, receives;  // in the order in which they were posted
  };
  using MessageStream = std::tuple<bool, int, Channel, Tensor>;  // receives, peer, …

  Pass pass() const { return premises_.pass; }
  SlotState& buffer(Tensor tensor, Slot slot);
  void release(const PostedTransfer& posted, bool landing);
  void run(const Clear& clear);
  void run(const Compute& compute);
  PostedTransfer posted(const Transfer& transfer, bool receives);
  void post_send(const PostedTransfer& posted);
  void post_receive(const PostedTransfer& posted);
  void check_pairs(const std::vector<PostedTransfer>& sends);
  void arrive(PostedTransfer& landed, std::vector<PostedTransfer>& all);
  void merge(PostedTransfer& landed, std::vector<PostedTransfer>& all);
  void store(const PostedTransfer& landed);
  void add(const PostedTransfer& landed);
  TensorSlice slice_of(const Compute& compute, Tensor tensor) const;

  template <class... Args>
  void fault(const std::string& subject, fmt::format_string<Args...> text, Args&&... args);
  template <class Subject>
  SlotState* readable(const TensorSlice& slice, Slot slot, const Subject& subject);
  template <class Subject>
  void contribute(const TensorSlice& slice, Slot slot, std::uint64_t what, const Subject& subject);
  template <class Subject>
  void check_agreement(Slot slot, const Subject& subject);
  template <class Subject>
  void check_sent_on(const SlotState& slot, Tensor tensor, Slot number, const Subject& subject);

  const Premises& premises_;
  Diagnostics& diagnostics_;
  int rank_, step_ = 0;
  RankSlots memory_;
  std::vector<Waits> waits_;                      // [step]
  std::map<MessageStream, std::int64_t> counts_;  // of o and lse
  std::int64_t transfers_ = 0, computes_ = 0;
};

}  // namespace annulus::plan::validation
