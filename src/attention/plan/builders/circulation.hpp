#pragma once

#include <string>
#include <vector>

#include <annulus/attention/plan/plan.hpp>

#include "attention/plan/needs/ring_routes.hpp"

namespace annulus::plan {

/// The tensors that circulate in one pass of a schedule. RingRoutes tells in which direction.
struct CirculatedTensors {
  Side side = Side::key;          ///< whose shards circulate; the other side stays
  std::vector<Tensor> inputs;     ///< read by the ranks that they pass
  std::vector<Tensor> gradients;  ///< summed over these ranks, one hop later, and returned to the owner
};

/// K and V circulate; in the backward pass also dK and dV (BurstEngine Algorithm 1).
CirculatedTensors circulate_kv(Pass pass);
/// Q, dO, LSE, D and dQ of the backward pass circulate (BurstEngine Algorithm 2).
CirculatedTensors circulate_q();

/// The rings on which they circulate.
struct Rings {
  int inner_size = 1;  ///< ranks of an inner ring: all of them for one flat ring; divides their number
  bool gradients_alone = false;  ///< gradients are sent while nothing computes
  bool cuts_heads = true;        ///< computes may be cut by heads (tail.hpp, head_turns.hpp)
};

/// The plan in which rank r works at step t with the shard that started t hops away: that of rank (r − t) mod
/// G where shards go toward higher ranks.
///
/// Inputs are received one step ahead, double-buffered (slots 1 and 2), and go as far as the last rank that
/// needs them. The gradients of a remote shard are computed at step t into a partial sum of their own (slots
/// 1 and 2), so that the sum of the ranks before is not waited for: that sum travels during the same step, is
/// added, and goes on at step t + 1. The last rank that computes returns the sum
/// straight to its owner. Where
/// gradients are long, the last round is cut by heads, so that the sum of one part is on its way while the
/// next part computes (tail.hpp).
///
/// A two-level ring (BurstEngine §3.1, Figures 4 and 5) does the same on both levels at the same time. An
/// inner ring is a group of consecutive ranks; a loop is one turn of a shard on an inner ring. During a loop
/// the shard is already on its way to the next inner ring: between the ranks that have the owner's place in
/// their inner rings, double-buffered as well (slots 3 and 4). The sum that an inner ring adds to the shard's
/// gradients returns to that rank (slots 5 and 6) one step after the loop, and goes on to the next inner ring
/// during its next loop. So every rank exchanges only with its two neighbours on the inner ring and with
/// ranks of equal place, and every rank but its owner sends a gradient once. Where messages are long, half of
/// the heads go round at a time, in half of the buffers (head_turns.hpp).
Plan circulate(std::string schedule, const Problem& problem, Pass pass, CirculatedTensors circulated,
               Rings rings);

}  // namespace annulus::plan
