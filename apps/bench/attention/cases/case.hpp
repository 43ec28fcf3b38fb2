#pragma once

#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/sparsity/options.hpp>
#include <annulus/cluster/topology/topology.hpp>
#include <annulus/prediction/simulator/cluster.hpp>
#include <optional>

#include "bench/attention/cases/options.hpp"
#include "bench/attention/local/inputs.hpp"

namespace annulus::bench {

/// A case that can be run.
struct BenchCase {
  AttentionOptions options;  ///< with the schedule and layout that `auto` stands for
  std::string asked_schedule, asked_layout;
  plan::Problem problem = {};
  plan::Plan forward = {}, backward = {};
  std::optional<sparsity::PatternOptions> sparsity = {};  ///< of --sparsity
};

/// Longest sequence whose selected pairs --check and --dump take one by one.
inline constexpr std::int64_t most_tokens_of_pairs = 4096;

/// The mask has the term 'documents' without start offsets, which come from --data.
bool takes_documents_of_data(const AttentionOptions& options);

/// Makes the problem and its plans for `topology`; `cluster` is what `auto` chooses for. The same on all
/// ranks. Throws Error when the combination cannot be served.
BenchCase make_case(const AttentionOptions& options, const Topology& topology,
                    const simulator::Cluster& cluster);

/// Where the values of one rank come from.
InputSource inputs_of(const BenchCase& c, int rank);

}  // namespace annulus::bench
