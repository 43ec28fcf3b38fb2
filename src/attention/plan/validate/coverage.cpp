#include <algorithm>
#include <mutex>
#include <span>
#include <tuple>

#include "attention/plan/rectangle.hpp"
#include "attention/plan/text.hpp"
#include "attention/plan/validate/validation.hpp"
#include "base/parallel_tasks.hpp"

namespace annulus::plan::validation {
namespace {

/// A compute of a representative rank; or, raised by `by`, of the rank in whose place one stands.
struct PlacedCompute {
  int q, kv;  // shards, so raised that the queries' owner is a representative rank
  int rank, step, entry;
  Compute compute;
  int by;
};

/// Owners of queries that are representative ranks.
using Owners = std::vector<bool>;

class CoverageCheck {
 public:
  CoverageCheck(const ProofScope& scope, std::vector<PlacedCompute> computes, Diagnostics& diagnostics)
      : scope_(scope), diagnostics_(diagnostics), computes_(std::move(computes)) {
    std::ranges::sort(computes_, {},
                      [](const PlacedCompute& p) { return std::tuple(p.q, p.kv, p.rank, p.step, p.entry); });
  }

  /// The computes with the queries of these owners, which are all that there are of them.
  void check(const Owners& owners) {
    auto next = computes_.begin();
    for (int q = 0; q < scope_.representatives(); ++q) {
      if (!owners[static_cast<std::size_t>(q)]) continue;
      const auto first = next;
      int computed = 0;  // shards of keys
      while (next != computes_.end() && next->q == q) {
        const auto begin = next;
        while (next != computes_.end() && next->q == q && next->kv == begin->kv) ++next;
        check_computed({begin, next});
        ++computed;
      }
      if (computed < scope_.ranks()) check_others(q, {first, next});
    }
  }

 private:
  using Computes = std::span<const PlacedCompute>;

  const PositionMap& shard(int rank) const { return scope_.premises.shard(rank); }

  std::int64_t pairs(int q, RowRange q_rows, int kv, RowRange kv_rows) const {
    if (q_rows.empty() || kv_rows.empty()) return 0;
    return scope_.problem().mask.pairs(shard(q).slice(q_rows), shard(kv).slice(kv_rows));
  }

  bool has_all_rows(const Compute& compute) const {
    return compute.q_rows.size() == shard(compute.q_shard).count &&
           compute.kv_rows.size() == shard(compute.kv_shard).count;
  }

  /// Whole shards, of which each compute does other heads: exact whatever the mask.
  bool is_split_by_heads(Computes computes) {
    if (!std::ranges::all_of(computes, [this](const PlacedCompute& p) { return has_all_rows(p.compute); }))
      return false;
    heads_.clear();
    for (const PlacedCompute& placed : computes) heads_.push_back(placed.compute.heads);
    std::ranges::sort(heads_, {}, &HeadRange::begin);
    int end = 0;
    for (const HeadRange& heads : heads_) {
      if (heads.begin != end) return false;
      end = heads.end;
    }
    return end == scope_.problem().heads;
  }

  /// The computes of one shard pair, and of those for which it stands, since a mask does not repeat itself.
  void check_computed(Computes computes) {
    if (is_split_by_heads(computes)) return;
    for (int by = 0; by < scope_.ranks(); by += scope_.representatives()) {
      check_pairs(computes.front().q + by, scope_.shift.rank(computes.front().kv, by), by, computes);
    }
  }

  /// Keys with which nobody computes the queries of a shard, given all computes of these: the mask leaves
  /// none of them. Looked for shard by shard only where the numbers of pairs say that there are some.
  void check_others(int q, Computes computes) {
    const Mask& mask = scope_.problem().mask;
    const PositionMap all = Layout().shard(mask.tokens(), 1, 0);
    for (int by = 0; by < scope_.ranks(); by += scope_.representatives()) {
      const PositionMap& queries = shard(q + by);
      std::vector<bool> computed(static_cast<std::size_t>(scope_.ranks()));
      std::int64_t missing = mask.pairs(queries, all);
      for (const PlacedCompute& placed : computes) {
        const int kv = scope_.shift.rank(placed.kv, by);
        if (computed[static_cast<std::size_t>(kv)]) continue;
        computed[static_cast<std::size_t>(kv)] = true;
        missing -= mask.pairs(queries, shard(kv));
      }
      for (int kv = 0; kv < scope_.ranks() && missing > 0; ++kv) {
        if (computed[static_cast<std::size_t>(kv)] || mask.is_empty(queries, shard(kv))) continue;
        diagnostics_.add("q[{}] x kv[{}] is never computed", q + by, kv);
        missing -= mask.pairs(queries, shard(kv));
      }
    }
  }

  /// No two computes share an unmasked pair, and together they have all.
  void check_pairs(int q, int kv, int by, Computes computes) {
    std::vector<Compute> here;
    for (const PlacedCompute& placed : computes)
      here.push_back(scope_.shift.compute(placed.compute, placed.by + by));
    bool disjoint = true;
    for (std::size_t a = 0; a < here.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        const Compute &x = here[a], &y = here[b];
        const int heads = intersection(x.heads, y.heads).size();
        if (heads <= 0) continue;
        const std::int64_t twice =
            heads * pairs(q, intersection(x.q_rows, y.q_rows), kv, intersection(x.kv_rows, y.kv_rows));
        if (twice == 0) continue;
        disjoint = false;
        diagnostics_.add("{} (query, key, head) are computed twice: {}; {}", twice,
                         describe(computes[b], y, by), describe(computes[a], x, by));
      }
    }
    if (!disjoint) return;

    std::int64_t computed = 0;
    for (const Compute& compute : here)
      computed += compute.heads.size() * pairs(q, compute.q_rows, kv, compute.kv_rows);
    const std::int64_t all = scope_.problem().heads * scope_.problem().mask.pairs(shard(q), shard(kv));
    if (computed != all) {
      diagnostics_.add("q[{}] x kv[{}]: {} of {} (query, key, head) are never computed", q, kv,
                       all - computed, all);
    }
  }

  std::string describe(const PlacedCompute& placed, const Compute& compute, int by) const {
    return fmt::format("rank {}, step {}: {}", scope_.shift.rank(placed.rank, placed.by + by), placed.step,
                       plan::describe(compute));
  }

  const ProofScope& scope_;
  Diagnostics& diagnostics_;
  std::vector<PlacedCompute> computes_;  // by shards, then in the order of ranks and steps
  std::vector<HeadRange> heads_;
};

/// All computes with the queries of some owners.
std::vector<PlacedCompute> computes_of(const ProofScope& scope, const Owners& owners) {
  std::vector<PlacedCompute> all;
  std::mutex mutex;
  parallel_tasks(scope.representatives(), scope.workers, [&](int, int rank) {
    std::vector<PlacedCompute> here;
    for (int number = 0; number < scope.plan.steps; ++number) {
      const Step step = scope.plan.step(rank, number);
      for (int entry = 0; const Compute& compute : step.computes) {
        const int by = -scope.distance(compute.q_shard), q = compute.q_shard + by, e = entry++;
        if (!owners[static_cast<std::size_t>(q)]) continue;
        here.push_back({q, scope.shift.rank(compute.kv_shard, by), rank, number, e, compute, by});
      }
    }
    const std::lock_guard lock(mutex);
    all.insert(all.end(), here.begin(), here.end());
  });
  return all;
}

/// Owners whose sums do not show that their queries are computed as they should.
std::vector<int> undecided(const ProofScope& scope, const std::vector<ComputeSum>& computed) {
  std::vector<char> shown(computed.size());  // not bits, which threads could not write side by side
  parallel_tasks(scope.representatives(), scope.workers, [&](int, int owner) {
    const auto o = static_cast<std::size_t>(owner);
    shown[o] = computed[o].partial == 0 && computed[o].weight == expected_weight(scope.premises, owner);
  });
  std::vector<int> owners;
  for (int owner = 0; owner < scope.representatives(); ++owner)
    if (shown[static_cast<std::size_t>(owner)] == 0) owners.push_back(owner);
  return owners;
}

}  // namespace

void check_coverage(const ProofScope& scope, const std::vector<ComputeSum>& computed,
                    Diagnostics& diagnostics) {
  constexpr std::int64_t most_computes = 500'000;  // at a time: some 80 MB
  const std::vector<int> rest = undecided(scope, computed);
  for (auto next = rest.begin(); next != rest.end() && !diagnostics.full();) {
    Owners owners(computed.size());
    std::int64_t count = 0;
    do {
      owners[static_cast<std::size_t>(*next)] = true;
      count += computed[static_cast<std::size_t>(*next++)].computes;
    } while (next != rest.end() &&
             count + computed[static_cast<std::size_t>(*next)].computes <= most_computes);
    CoverageCheck(scope, computes_of(scope, owners), diagnostics).check(owners);
  }
}

}  // namespace annulus::plan::validation
