#include "prediction/simulator/rank_classes.hpp"

#include <algorithm>
#include <cmath>

namespace annulus::simulator {

RankClasses::RankClasses(const plan::Plan& plan, int representatives)
    : problem_(plan.problem), representatives_(representatives), shift_(plan.problem) {
  for (int rank = 0; rank < problem_.ranks(); ++rank) shards_.push_back(problem_.shard(rank));
  const int rank_class = problem_.ranks() / representatives;
  for (const int place : {rank_class / 3, 2 * rank_class / 3, rank_class - 1}) {
    if (place > 0 && (sample_.empty() || sample_.back() < place * representatives))
      sample_.push_back(place * representatives);
  }
}

RankClasses::ClassPairs RankClasses::pairs(const plan::Compute& compute) const {
  const auto count = [this](const plan::Compute& c) {
    return problem_.mask.pairs(rows(c.q_shard, c.q_rows), rows(c.kv_shard, c.kv_rows));
  };
  ClassPairs pairs;
  pairs.here = pairs.most = count(compute);
  for (const int by : sample_) pairs.most = std::max(pairs.most, count(shift_.compute(compute, by)));
  return pairs;
}

std::int64_t Selected::share_of(std::int64_t unmasked) const {
  return density == 1 ? unmasked : std::llround(density * static_cast<double>(unmasked));
}

Kernels::ComputeWork Kernels::work(const plan::Compute& compute) {
  const auto [here, most] = classes_.pairs(compute);
  ComputeWork work{
      here, selected_.pairs ? selected_.pairs(plan_.problem, classes_.rows(compute.q_shard, compute.q_rows),
                                              classes_.rows(compute.kv_shard, compute.kv_rows), compute.heads)
                            : selected_.share_of(most * compute.heads.size())};
  const std::int64_t queries = compute.q_rows.size(), keys = compute.kv_rows.size();
  const std::pair block(std::min(queries, keys), mask_of(work.pairs, queries * keys * compute.heads.size()));
  auto rate = rates_.find(block);
  if (rate == rates_.end()) {
    const plan::Problem& problem = plan_.problem;
    rate = rates_
               .emplace(block,
                        cluster_.rate(plan_.pass, problem.head_dim, block.first, problem.dtype, block.second))
               .first;
  }
  work.seconds = flops(plan_.problem, plan_.pass, work.pairs) / rate->second;
  return work;
}

void Totals::add(int rank, const plan::Compute& compute, std::int64_t pairs) {
  RankTotals& r = ranks_[rank];
  r.pairs += pairs * compute.heads.size();
  r.queries[{compute.q_shard, compute.heads.begin}] = compute.heads.size();
  r.keys[{compute.kv_shard, compute.heads.begin}] = compute.heads.size();
}

std::vector<std::int64_t> Totals::pairs(const plan::Problem& problem) const {
  const int ranks = problem.ranks(), representatives = static_cast<int>(ranks_.size());
  std::vector<std::int64_t> totals;
  if (representatives < ranks) {
    const PositionMap all = Layout().shard(problem.mask.tokens(), 1, 0);
    for (const bool of_queries : {true, false}) {
      // Pairs of each shard with all others, counted when somebody asks.
      std::vector<std::int64_t> counted(static_cast<std::size_t>(ranks), -1);
      const auto of_shard = [&](int shard) {
        std::int64_t& pairs = counted[shard];
        if (pairs < 0) {
          const PositionMap rows = problem.shard(shard);
          pairs = of_queries ? problem.mask.pairs(rows, all) : problem.mask.pairs(all, rows);
        }
        return pairs;
      };
      const auto of_rank = [&](int rank) {
        const RankTotals& r = ranks_[rank % representatives];
        std::int64_t sum = 0;
        for (const auto& [which, heads] : of_queries ? r.queries : r.keys)
          sum += heads * of_shard((which.first + rank - rank % representatives) % ranks);
        return sum;
      };
      bool exact = true;
      for (int rank = 0; rank < representatives && exact; ++rank) exact = of_rank(rank) == ranks_[rank].pairs;
      if (!exact) continue;
      for (int rank = 0; rank < ranks; ++rank) totals.push_back(of_rank(rank));
      return totals;
    }
  }
  for (int rank = 0; rank < ranks; ++rank) totals.push_back(ranks_[rank % representatives].pairs);
  return totals;
}

}  // namespace annulus::simulator
