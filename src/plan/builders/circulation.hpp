#pragma once

#include <string>
#include <vector>

#include <annulus/plan/plan.hpp>

#include "plan/needs/reach.hpp"

namespace annulus::plan {

/// What goes round in one pass of a schedule. Reach says which way the rings turn.
struct Travellers {
  Side side = Side::key;          ///< whose shards travel; the other side stays
  std::vector<Tensor> inputs;     ///< read by the ranks that they pass
  std::vector<Tensor> gradients;  ///< summed over these ranks, one hop behind, and brought home
};

/// K and V travel; in the backward dK and dV, too (BurstEngine Algorithm 1).
Travellers keys_travel(Pass pass);
/// Q, dO, LSE, D and dQ of the backward travel (BurstEngine Algorithm 2).
Travellers queries_travel();

/// The rings on which they go round.
struct Rings {
  int group_size = 1;  ///< ranks of an inner ring: all of them for one flat ring; divides their number
  bool gradients_alone = false;  ///< gradients travel while nothing computes
  bool cuts_heads = true;        ///< the last computes may be cut by heads (tail.hpp)
};

/// The plan in which rank r works at step t with the shard that started t hops away, (r − t) mod G where the
/// ring turns upwards.
///
/// Inputs are received one step ahead, double-buffered (slots 1 and 2), and go as far as the last rank that
/// needs them. The gradients of a foreign shard are computed at step t into a partial sum of their own (slots
/// 1 and 2), so that the sum of the ranks before is not waited for: that sum travels during the same step, is
/// added, and goes on at step t + 1. From the last rank that computes, the sum goes straight home. Where
/// gradients are long, the last round is cut by heads, so that the sum of one part is on its way while the
/// next part computes (tail.hpp).
///
/// On a ring of rings (BurstEngine §3.1, Figures 4 and 5) the same happens on two levels at the same time.
/// While a shard goes round the inner ring of a group (a loop), it is already on its way to the next group,
/// from and to the rank with its owner's place in the group, double-buffered as well (slots 3 and 4). What a
/// group adds to the shard's gradients comes home to that rank (slots 5 and 6) one step after the loop and
/// goes on to the next group while that one is in its next loop. So every rank exchanges with its two
/// neighbours in the group and with those of its own rail only, and a gradient is sent once by every rank but
/// its owner.
Plan circulate(std::string schedule, const Problem& problem, Pass pass, Travellers travellers, Rings rings);

}  // namespace annulus::plan
