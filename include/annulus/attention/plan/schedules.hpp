#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/attention/plan/plan.hpp>

namespace annulus::plan {

/// Ring attention. Forward: K and V circulate, (O, LSE) stays (BurstEngine §3.1). Backward: K, V, dK, dV
/// circulate (BurstEngine Algorithm 1).
Plan make_ring(const Problem& problem, Pass pass);

/// BurstAttention. The forward is ring attention's; in the backward Q, dO, LSE, D and dQ circulate while K,
/// V, dK and dV stay (BurstEngine Algorithm 2), the dQ ring one hop behind.
Plan make_burst(const Problem& problem, Pass pass);

/// All-gather of K and V before the first remote shard is computed, reduce-scatter of dK and dV (Llama 3
/// §3.3.2, PyTorch's context parallelism), both as pairwise messages. A rank gets the rows that its own rows
/// attend to.
Plan make_all_gather(const Problem& problem, Pass pass);

/// Topology-aware BurstAttention (BurstEngine §3.1, Figures 4 and 5, Table 1): the tensors of `burst`
/// circulate on a ring inside each node and one ring between nodes for each rank of a node, at the same time.
/// Activations travel from the first round, gradients from the second remote one; dQ is summed up inside a
/// node for a loop of its ring and goes on to the next node during the next loop. Throws Error when the nodes
/// differ in size.
Plan make_topology_burst(const Problem& problem, Pass pass);

/// Hierarchical ring attention (MTraining §4.3): the tensors of `ring` circulate on the rings of
/// `topology-burst`. The transfers between nodes are posted first. Throws Error when the nodes differ in
/// size.
Plan make_hierarchical(const Problem& problem, Pass pass);

/// Double-Ring-Attention (LoongTrain): the forward of `hierarchical`, where windows of ranks take the place
/// of nodes. The backward's gradients do not travel while ranks compute (BurstEngine §3.1 and Table 1): every
/// round is followed by a step without compute that moves dK and dV one rank on, every loop by one that moves
/// them to the next window. Without `window` the windows are the nodes. Throws Error when it does not divide
/// the ranks, or when the nodes differ in size.
Plan make_double_ring(const Problem& problem, Pass pass, std::optional<int> window = std::nullopt);

/// DistFlashAttn (§3.2, with the rounds of its code): in each of ⌊P/2⌋ rounds the ranks with early tokens,
/// which have nothing left to do, compute for ranks with late ones, and return (O, LSE) or dQ. Throws Error
/// unless the shards are consecutive intervals and no query attends to later keys.
Plan make_helper_worker(const Problem& problem, Pass pass);

/// DeepSpeed-Ulysses: rows of all heads are exchanged for all rows of some heads, and results back, by
/// pairwise messages. K/V heads go to every rank with a query head of theirs; head ranges may differ by one.
/// Throws Error when there are fewer query heads than ranks.
Plan make_ulysses(const Problem& problem, Pass pass);

/// Hybrid of Ulysses and ring attention (USP; LoongTrain's 2D-Attention) on the problem's grid: heads are
/// exchanged inside each Ulysses group, shards circulate between the groups for each range of heads; on the
/// layout `balanced` they are gathered, as its ranks work equally much in a pass and not in each step of a
/// ring. Throws Error when there are fewer query heads than ranks of a group.
Plan make_hybrid(const Problem& problem, Pass pass);

/// The problem as a schedule poses it: "hybrid:HxC", which may end in ":head-first" or ":context-first", sets
/// the grid, and with it the shards; the layout `balanced` is cut for the mask. Throws Error as
/// check_schedule does, when the ranks are not H·C, and as Layout::for_mask does.
Problem arranged_for(std::string_view name, Problem problem, std::string_view field = "schedule");
/// The problem as a schedule poses it where layers attend to a sequence under several masks, of which
/// `problem` has one: the layout `balanced` is cut for all of them together. Throws Error as check_schedule
/// and Layout::for_mask do.
Problem arranged_for(std::string_view name, Problem problem, std::span<const MaskedLayers> layers,
                     std::string_view field = "schedule");

/// Names that make_plan knows, in the order in which help texts list them; what is to be filled in stands in
/// capitals.
std::vector<std::string> schedule_names();

/// Throws Error naming `field` and the known names when no schedule has the name before the colon.
void check_schedule(std::string_view name, std::string_view field = "schedule");

/// Makes a plan, by name, of the problem as arranged_for gives it; "double-ring:4" is double-ring with
/// windows of 4 ranks. Throws Error as check_schedule does, and when the schedule cannot serve the problem.
Plan make_plan(std::string_view name, const Problem& problem, Pass pass, std::string_view field = "schedule");

}  // namespace annulus::plan
