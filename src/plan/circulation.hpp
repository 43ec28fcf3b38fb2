#pragma once

#include <string>
#include <vector>

#include <annulus/plan/plan.hpp>

#include "plan/reach.hpp"

namespace annulus::plan {

/// What goes round the ring in one pass of a schedule. Reach says which way the ring turns.
struct Travellers {
  Side side = Side::key;          ///< whose shards travel; the other side stays
  std::vector<Tensor> inputs;     ///< read by the ranks that they pass
  std::vector<Tensor> gradients;  ///< summed over these ranks, one hop behind, and brought home
};

/// The plan in which rank r works at step t with the shard that started t hops away, (r − t) mod G where the
/// ring turns upwards.
///
/// Inputs are received one step ahead, double-buffered (slots 1 and 2), and go as far as the last rank that
/// needs them. The gradients of a foreign shard are computed at step t into a partial sum of their own (slots
/// 1 and 2), so that the sum of the ranks before is not waited for: that sum travels during the same step, is
/// added, and goes on at step t + 1. From the last rank that computes, the sum goes straight home.
Plan circulate(std::string schedule, const Problem& problem, Pass pass, Travellers travellers);

}  // namespace annulus::plan
