#include "bench/attention/check/global.hpp"

#include <algorithm>
#include <array>

namespace annulus::bench {

namespace {

/// Puts the rows of one rank, (batch, heads, rows, width), where they belong.
void scatter(const PositionMap& positions, const std::vector<float>& rows, GlobalTensor& all) {
  const float* row = rows.data();
  for (std::int64_t sequence = 0; sequence < all.batch * all.heads; ++sequence) {
    for (std::int64_t r = 0; r < positions.count; ++r, row += all.width) {
      std::copy_n(row, all.width, all.values.data() + (sequence * all.tokens + positions(r)) * all.width);
    }
  }
}

}  // namespace

GlobalTensor gather(comm::Communicator& communicator, const plan::Problem& problem, plan::Tensor tensor,
                    const std::vector<float>& rows) {
  const Queue queue{Kokkos::DefaultHostExecutionSpace()};
  if (communicator.rank() != 0) {
    const std::array<comm::Send, 1> send{{{rows.data(), rows.size() * sizeof(float), 0}}};
    communicator.exchange(queue, send, {}).wait();
    return {};
  }
  GlobalTensor all;
  all.batch = problem.batch;
  all.heads = plan::is_query_side(tensor) ? problem.heads : problem.kv_heads;
  all.tokens = problem.mask.tokens();
  all.width = plan::is_row_statistic(tensor) ? 1 : problem.head_dim;
  all.values.resize(static_cast<std::size_t>(all.batch * all.heads * all.tokens * all.width));
  scatter(problem.shard(0), rows, all);
  std::vector<float> theirs;
  for (int rank = 1; rank < communicator.size(); ++rank) {  // one after the other: room for one is enough
    theirs.resize(static_cast<std::size_t>(problem.elements(problem.whole(tensor, rank))));
    const std::array<comm::Receive, 1> receive{{{theirs.data(), theirs.size() * sizeof(float), rank}}};
    communicator.exchange(queue, {}, receive).wait();
    scatter(problem.shard(rank), theirs, all);
  }
  return all;
}

}  // namespace annulus::bench
