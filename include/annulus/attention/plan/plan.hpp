#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/attention/sequence/layout.hpp>
#include <annulus/attention/sequence/mask.hpp>
#include <annulus/attention/sequence/position_map.hpp>
#include <annulus/base/dtype.hpp>
#include <annulus/cluster/topology/topology.hpp>

/// Schedules as data. A plan says for every rank and step what is computed, what travels where, and into
/// which buffer. Builders (schedules.hpp) make plans, validate() proves them, the executor runs
/// them.
namespace annulus::plan {

enum class Pass : std::uint8_t { forward, backward };
std::string_view name_of(Pass pass);

/// Tensors that a plan names. Shapes of one shard: q, dq (batch, heads, rows, head_dim); o, d_o (batch,
/// heads, rows, v_head_dim); k, dk (batch, kv_heads, rows, head_dim); v, dv (batch, kv_heads, rows,
/// v_head_dim); lse and d = rowsum(dO∘O) (batch, heads, rows).
enum class Tensor : std::uint8_t { q, k, v, o, lse, d, d_o, dq, dk, dv };
inline constexpr int tensor_count = 10;

/// "q", "k", "v", "o", "lse", "d", "do", "dq", "dk", "dv".
std::string_view name_of(Tensor tensor);

/// Tensors with one entry a query row; the others have one a key row.
constexpr bool is_query_side(Tensor t) {
  return t != Tensor::k && t != Tensor::v && t != Tensor::dk && t != Tensor::dv;
}
constexpr bool is_gradient(Tensor t) {
  return t == Tensor::dq || t == Tensor::dk || t == Tensor::dv;
}
/// One number a row and head.
constexpr bool is_row_statistic(Tensor t) {
  return t == Tensor::lse || t == Tensor::d;
}

/// Rows have the columns of V: v_head_dim.
constexpr bool has_columns_of_v(Tensor t) {
  return t == Tensor::v || t == Tensor::o || t == Tensor::d_o || t == Tensor::dv;
}

/// Half-open range of heads, counted in the tensor's own heads (kv heads for k, v, dk, dv).
struct HeadRange {
  int begin = 0, end = 0;
  constexpr int size() const { return end - begin; }
  friend constexpr bool operator==(const HeadRange&, const HeadRange&) = default;
};

/// Index of a buffer of a rank, counted for each tensor on its own. Slot 0, `local_slot`, is the local
/// buffer, the rank's own shard: the caller's inputs, running (O, LSE) and gradient sums. Slots 1, 2, … are
/// exchange buffers of the executor; each holds one slice at a time, of which computes and sends may use a
/// part.
using Slot = int;
inline constexpr Slot local_slot = 0;

/// A range of rows and heads of one shard of one tensor.
struct TensorSlice {
  Tensor tensor = Tensor::q;
  int owner = 0;    ///< rank whose shard it is a slice of
  RowRange rows;    ///< rows of that shard
  HeadRange heads;  ///< in the tensor's own heads
  friend bool operator==(const TensorSlice&, const TensorSlice&) = default;
};

/// Attention between query rows of one shard and key rows of another, for a range of query heads.
/// Forward: reads q at q_slot, k and v at kv_slot, merges into o and lse at out_slot.
/// Backward: reads q, d_o, lse, d at q_slot, k and v at kv_slot, adds to dq at out_slot, to dk and dv at
/// kv_grad_slot.
struct Compute {
  int q_shard = 0, kv_shard = 0;
  RowRange q_rows, kv_rows;
  HeadRange heads;  ///< query heads; kv heads follow from the grouping
  Slot q_slot = local_slot, kv_slot = local_slot, out_slot = local_slot, kv_grad_slot = local_slot;
  friend bool operator==(const Compute&, const Compute&) = default;
};

/// Transfers of different channels may overtake one another; those of one channel between one pair of ranks
/// arrive in the order in which they were posted. A back-end may give each channel a communicator and a
/// stream. Within a step transfers are posted channel by channel, in this order: those with the longest way
/// first.
enum class Channel : std::uint8_t {
  outer_activations,  ///< on the outer ring of a two-level ring: between inner rings, which are nodes as a
                      ///< rule
  outer_gradients,
  activations,  ///< everything else
  gradients
};
inline constexpr int channel_count = 4;
std::string_view name_of(Channel channel);

/// What the receiver does when a transfer has arrived.
enum class OnReceive : std::uint8_t {
  store,  ///< the landing slot holds the slice from now on
  add,    ///< the landing slot is added to `target`, then free again
  merge,  ///< o and lse land and are merged, by online softmax, into the o and lse at `target`; the two
          ///< transfers have the same rows, heads, slot, target, post and wait
};
std::string_view name_of(OnReceive on_receive);

/// One side of a message. The matching side is the equal-numbered one of the peer, per channel and direction.
struct Transfer {
  TensorSlice slice;
  DType wire = DType::f32;
  Channel channel = Channel::activations;
  int peer = 0;
  Slot slot = local_slot;    ///< source (send) or landing buffer (receive)
  Slot target = local_slot;  ///< add and merge: where the landed slice goes
  OnReceive on_receive = OnReceive::store;
  int post = 0;  ///< step that posts it, before that step's computes
  int wait = 0;  ///< step that waits for it, before that step's posts; later than `post`
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

/// Sets a slice of an exchange slot to the neutral element of its sum (zero; lse: −∞) and thereby defines
/// what the slot holds. For o, lse and gradients only.
struct Clear {
  TensorSlice slice;
  Slot slot = local_slot;
  friend bool operator==(const Clear&, const Clear&) = default;
};

/// One step of one rank. In this order: all transfers of earlier steps with wait == this step complete; their
/// receive actions (OnReceive) run, in the order in which they were posted (the two of a merge together);
/// clears; sends and receives are posted; computes run, in the order listed, while the posted transfers
/// travel.
struct Step {
  std::vector<Clear> clears;
  std::vector<Transfer> sends, receives;
  std::vector<Compute> computes;
  friend bool operator==(const Step&, const Step&) = default;
};

/// Which ranks of a grid are consecutive, and so share a node where they can.
enum class GridPlacement : std::uint8_t {
  head_first,    ///< ranks of a Ulysses group, which exchange heads
  context_first  ///< ranks of equal Ulysses rank, which form a ring and exchange shards
};
std::string_view name_of(GridPlacement placement);

/// Ranks in two dimensions (USP, LoongTrain): Ulysses groups of `ulysses_degree` ranks, which are
/// head-parallel, and rings between them. The layout deals the sequence out to the Ulysses groups; the ranks
/// of a group hold consecutive parts of its shard.
struct Grid {
  int ulysses_degree = 1;  ///< ranks of a Ulysses group, a divisor of the number of ranks
  GridPlacement placement = GridPlacement::head_first;

  /// Ranks of a ring, which is the number of Ulysses groups.
  int ring_degree(int ranks) const { return ranks / ulysses_degree; }
  /// Place of a rank in its ring, which is the index of its Ulysses group.
  int ring_rank(int rank, int ranks) const {
    return placement == GridPlacement::head_first ? rank / ulysses_degree : rank % ring_degree(ranks);
  }
  /// Place of a rank in its Ulysses group.
  int ulysses_rank(int rank, int ranks) const {
    return placement == GridPlacement::head_first ? rank % ulysses_degree : rank / ring_degree(ranks);
  }
  int rank(int ring_rank, int ulysses_rank, int ranks) const {
    return placement == GridPlacement::head_first ? ring_rank * ulysses_degree + ulysses_rank
                                                  : ulysses_rank * ring_degree(ranks) + ring_rank;
  }
  friend bool operator==(const Grid&, const Grid&) = default;
};

/// What is to be computed: sequence, heads, types and where the ranks sit.
struct Problem {
  Topology topology;
  Layout layout;
  Mask mask;  ///< knows the number of tokens
  int heads = 1, kv_heads = 1;
  int head_dim = 64;
  int v_head_dim = 0;  ///< of v and o, where theirs differs (multi-head latent attention); 0: head_dim
  int batch = 1;
  DType dtype = DType::f32;  ///< wire and storage type of q, k, v, d_o
  Grid grid = {};            ///< Ulysses groups, to which the layout deals the sequence out
  /// Only the first so many positions of the sequence take part, queries and keys; 0: all. Sequence-selective
  /// checkpoints (BurstEngine §3.2) leave the attention of these queries to be computed again. Needs a mask
  /// under which no query attends to later keys, and the forward pass.
  std::int64_t positions = 0;

  int ranks() const { return topology.ranks(); }
  /// Columns of a row of the tensor; 1 of a row statistic.
  int columns(Tensor tensor) const {
    if (is_row_statistic(tensor)) return 1;
    return has_columns_of_v(tensor) && v_head_dim > 0 ? v_head_dim : head_dim;
  }
  /// "128"; "192 (v 128)".
  std::string text_of_head_dims() const;
  /// Floating-point operations of a pair of query and key of one head: two products forward, five backward.
  double flops_of_pair(Pass pass) const {
    const double qk = columns(Tensor::q), v = columns(Tensor::v);
    return pass == Pass::forward ? 2 * qk + 2 * v : 6 * qk + 4 * v;
  }
  int group() const { return heads / kv_heads; }  ///< query heads that share a kv head
  /// Rows that a rank owns: its part of what the layout gives its Ulysses group.
  PositionMap owned(int rank) const;
  /// A rank's shard: the first of the rows that it owns, as far as they take part; all of them where
  /// `positions` is 0.
  PositionMap shard(int rank) const;
  /// All rows of `owner`'s shard and all heads of `tensor`.
  TensorSlice whole(Tensor tensor, int owner) const;
  /// All rows that `owner` owns and all heads of `tensor`: what its local arrays hold.
  TensorSlice local(Tensor tensor, int owner) const;
  /// The rows of `map` that take part.
  PositionMap taking_part(const PositionMap& map) const;
  /// The problem in which all positions take part.
  Problem of_all_positions() const;
  /// Wire type of a tensor: activations travel as stored, o, lse, d and gradients in fp32.
  DType wire(Tensor tensor) const;
  /// Elements (over the whole batch) that a slice has.
  std::int64_t elements(const TensorSlice& slice) const;
  /// Throws Error when heads, kv_heads, head dimensions, batch, grid or positions make no sense.
  void check() const;
};

/// A schedule: pure functions of the problem that give any step of any rank. Steps are made when asked for
/// and not stored, so a plan for thousands of ranks costs nothing until somebody looks at it.
struct Plan {
  std::string schedule;  ///< "ring", "burst", …
  Pass pass = Pass::forward;
  Problem problem;
  int steps = 0;                                 ///< of each rank
  std::function<Step(int rank, int step)> step;  ///< may be called by several threads at once
  /// Above 0: a divisor of the number of ranks G by which the plan repeats itself. Rank (r + period) mod G
  /// does what rank r does with all rank numbers (peers, owners of shards) raised by `period`, modulo G, and
  /// with whole shards in the place of whole shards, whose rows may differ by one. 0: no such period is
  /// claimed.
  int period = 0;
  /// Claims that every rank computes with queries of its own alone. All keys that these may see then lie in
  /// its memory at some time of the pass. false claims nothing.
  bool queries_stay = false;
  /// Steps first … first + count − 1, which are parts of one round: other heads of the same slices.
  struct Parts {
    int first = 0, count = 1;
    bool defers = false;  ///< the step after them computes the heads that step 0 left out
    int turn = 0;         ///< above 0: so many steps further on the next heads begin anew
  } parts = {};

  /// The first of the steps that make a round with this one.
  int round(int step) const {
    const int begin = parts.turn > 0 ? step / parts.turn * parts.turn : 0, number = step - begin;
    if (parts.defers && number == parts.first + parts.count) return begin;
    return number > parts.first && number < parts.first + parts.count ? begin + parts.first : step;
  }
  /// "forward"; "forward of the first 4096 positions" where the others take no part.
  std::string pass_text() const;
};

/// Compares schedule name, pass and, rank by rank, the steps.
bool operator==(const Plan& a, const Plan& b);

/// The plan, or one rank of it, as text: a line for each compute, send and receive.
std::string to_string(const Plan& plan);
std::string to_string(const Plan& plan, int rank);

/// Elements that a rank sends and receives in a whole pass, by tensor, and pairs that it computes.
struct Traffic {
  std::int64_t sent[tensor_count] = {}, received[tensor_count] = {};
  std::int64_t sent_bytes = 0, received_bytes = 0;
  std::int64_t sent_bytes_inter_node = 0;
  std::int64_t pairs = 0;  ///< unmasked (query, key) pairs summed over heads (not over the batch)
};
Traffic traffic(const Plan& plan, int rank);

/// The largest load of a rank over the mean one (MTraining §3.3): 1 is balanced, and what exceeds it is the
/// factor by which the slowest rank is slower. 1 when there is none.
double worker_imbalance(const std::vector<std::int64_t>& loads);
/// The worker imbalance of the pairs that the ranks compute. Goes through all steps of all ranks.
double worker_imbalance(const Plan& plan);

/// Bytes that each rank sends in a pass for keys that dynamic sparse attention takes one by one, its columns
/// (docs/sparsity.md), besides what the plan sends. `columns`: of all selections together, each counted as
/// having as many as the one that has the most. `has_keys`: a backward pass whose columns were kept.
std::int64_t column_traffic(const Plan& plan, std::int64_t columns, bool has_keys = false);

/// Which ranks of a plan a proof or a simulation goes through.
enum class RankSubset : std::uint8_t {
  automatic,  ///< every rank of a small plan, those of a period where a large one has a period
  every_rank,
  period
};

/// Proves a plan, or says what is wrong with it. Every entry is one violation, naming rank, step and slice:
/// - every unmasked (query, key, head) is computed exactly once, and nothing outside shards and heads;
/// - every compute and send finds the slice it reads in its slot;
/// - sums are conserved: every contribution to a gradient or an (O, LSE) moves on exactly once with the
/// message that carries it, none is overwritten, and all rest at the end in the local buffer of their owner;
/// - sends meet receives in equal order, with equal slices and wire types, per source, destination and
/// channel;
/// - one issue order over all channels exists that cannot deadlock, even when a back-end runs the groups of a
/// rank strictly one after another (as NCCL does on one stream);
/// - no slot is written while it is read, sent or landed in;
/// - every posted transfer is waited for;
/// - a plan that claims it (Plan::queries_stay) computes with queries of its own ranks alone.
///
/// Ranks are proved one by one, shared out to the threads of the machine, and what they show is
/// added up: memory grows with the number of ranks and not with that of steps. Only where both ends of some
/// message are posted in different steps are all steps seen side by side; throws Error where these would take
/// gigabytes.
///
/// A large plan with a period (Plan::period) is proved on the ranks of one: the others do the same at the
/// same places, with other rank numbers, so what holds for them holds for all. That they do is compared for
/// all ranks and steps where these have at most a million entries; else for all steps of two other periods,
/// and for many ranks at three steps. Under a mask, pairs of shards that nobody computes are looked at for
/// all ranks.
///
/// Calls plan.step from several threads at once.
std::vector<std::string> violations(const Plan& plan, RankSubset subset = RankSubset::automatic);

/// Throws Error with the first violations when there are any.
void validate(const Plan& plan, RankSubset subset = RankSubset::automatic);

}  // namespace annulus::plan
