#include <iterator>
#include <map>
#include <mutex>

#include "attention/plan/text.hpp"
#include "attention/plan/validate/validation.hpp"
#include "base/parallel_tasks.hpp"

namespace annulus::plan::validation {
namespace {

/// What one thread has seen.
struct Share {
  std::vector<MessageSum> unanswered;
  std::vector<ComputeSum> computed;
  std::int64_t entries = 0;

  explicit Share(int representatives)
      : unanswered(static_cast<std::size_t>(representatives)),
        computed(static_cast<std::size_t>(representatives)) {}

  void take(const ProofScope& scope, int rank, const RankFindings& found) {
    for (int peer = 0; peer < scope.ranks(); ++peer) {
      const auto p = static_cast<std::size_t>(peer);
      const auto representative = static_cast<std::size_t>(scope.representative(peer));
      unanswered[static_cast<std::size_t>(rank)] += found.sent[p];
      unanswered[representative] -= found.received[p];
      computed[representative] += found.computed[p];
    }
  }
};

}  // namespace

std::int64_t entries_of(const Step& step) {
  return 1 + std::ssize(step.clears) + std::ssize(step.sends) + std::ssize(step.receives) +
         std::ssize(step.computes);
}

ProvedRanks prove_ranks(const ProofScope& scope) {
  std::vector<Share> shares(static_cast<std::size_t>(scope.workers), Share(scope.representatives()));
  std::mutex mutex;
  std::map<int, std::vector<std::string>> malformed, flow;  // by rank
  parallel_tasks(scope.representatives(), scope.workers, [&](int worker, int rank) {
    Share& share = shares[static_cast<std::size_t>(worker)];
    RankProof proof(scope.premises, rank);
    std::string strayed;  // the first compute with queries of another rank, where there ought to be none
    for (int number = 0; number < scope.plan.steps; ++number) {
      const Step step = scope.plan.step(rank, number);
      share.entries += entries_of(step);
      for (const Compute& compute : step.computes)
        if (scope.plan.queries_stay && compute.q_shard != rank && strayed.empty())
          strayed = fmt::format(
              "rank {}, step {}: {}: computes with queries of rank {}, "
              "though the plan says that queries stay",
              rank, number, describe(compute), compute.q_shard);
      proof.add(step);
    }
    RankFindings found = proof.finish();
    if (!strayed.empty()) found.violations.push_back(std::move(strayed));
    share.take(scope, rank, found);
    if (found.malformed.empty() && found.violations.empty()) return;
    const std::lock_guard lock(mutex);
    // The first ranks are enough: whoever has hundreds of findings wants to see the first.
    if (malformed.size() < Diagnostics::limit) malformed[rank] = found.malformed;
    if (flow.size() < Diagnostics::limit) flow[rank] = found.violations;
  });
  ProvedRanks all;
  for (const auto& [rank, messages] : malformed) all.malformed.add(messages);
  for (const auto& [rank, messages] : flow) all.flow.add(messages);
  all.unanswered.resize(static_cast<std::size_t>(scope.representatives()));
  all.computed.resize(all.unanswered.size());
  for (const Share& share : shares) {
    for (std::size_t rank = 0; rank < all.unanswered.size(); ++rank) {
      all.unanswered[rank] += share.unanswered[rank];
      all.computed[rank] += share.computed[rank];
    }
    all.entries += share.entries;
  }
  return all;
}

}  // namespace annulus::plan::validation
