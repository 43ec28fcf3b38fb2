#pragma once

#include <cstdint>
#include <vector>

#include <annulus/sequence/position_map.hpp>

#include "distributed/block.hpp"

namespace annulus::distributed {

/// One call of a local kernel.
struct LocalCall {
  Block q, k, v;
  Block o, lse;              ///< forward: merged into; backward: lse is read
  Block d, d_o, dq, dk, dv;  ///< backward
  PositionMap q_positions, kv_positions;
  std::int64_t first_batch = 0;  ///< of the whole batch
  std::int64_t first_head = 0;   ///< of all query heads: which block lists of HeadBlocks are the call's
  bool finishes = false;         ///< forward: nobody touches its rows of O behind it (finishing.hpp)
  std::int64_t pairs = 0;  ///< unmasked (query, key) pairs over heads and batch, once count_pairs has run
};

/// How a compute is cut by batch and kv head while transfers are in flight, so that the executor can give the
/// transport a turn between the parts: transports like Open MPI move data only while somebody is inside one
/// of their calls.
struct Cutting {
  std::int64_t least_pairs =
      0;            ///< (query, key, head) triples, masked or not, that a part has at least; 0: never cut
  int threads = 1;  ///< every part keeps this many threads busy
};

/// The parts of `call`, in order; the call itself when cutting is off. `pairs` is not divided.
std::vector<LocalCall> parts_of(const LocalCall& call, const Cutting& cutting);

/// The call's part in its sequence `batch`, from 0.
LocalCall sequence_of(const LocalCall& call, std::int64_t batch);

}  // namespace annulus::distributed
