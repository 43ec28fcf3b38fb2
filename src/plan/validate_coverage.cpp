#include <algorithm>
#include <map>

#include "plan/describe.hpp"
#include "plan/rectangle.hpp"
#include "plan/validation.hpp"

namespace annulus::plan::validation {
namespace {

struct Placed {
  int rank, step;
  const Compute* compute;
};

std::string describe(const Placed& placed) {
  return fmt::format("rank {}, step {}: {}", placed.rank, placed.step, plan::describe(*placed.compute));
}

class Coverage {
 public:
  Coverage(const Script& script, Findings& findings) : script_(script), findings_(findings) {
    for (int rank = 0; rank < script.ranks(); ++rank) {
      for (int step = 0; step < script.plan.steps; ++step) {
        for (const Compute& compute : script.at(rank, step).computes) {
          computes_[{compute.q_shard, compute.kv_shard}].push_back({rank, step, &compute});
        }
      }
    }
  }

  void check() {
    for (int q = 0; q < script_.ranks(); ++q) {
      for (int kv = 0; kv < script_.ranks(); ++kv) check(q, kv);
    }
  }

 private:
  const PositionMap& shard(int rank) const { return script_.shards[static_cast<std::size_t>(rank)]; }

  std::int64_t pairs(int q, RowRange q_rows, int kv, RowRange kv_rows) const {
    if (q_rows.empty() || kv_rows.empty()) return 0;
    return script_.problem().mask.pairs(shard(q).slice(q_rows), shard(kv).slice(kv_rows));
  }

  bool is_whole(const Compute& compute) const {
    return compute.q_rows.size() == shard(compute.q_shard).count &&
           compute.kv_rows.size() == shard(compute.kv_shard).count &&
           compute.heads.size() == script_.problem().heads;
  }

  /// All pairs of one shard pair: no two computes share an unmasked one, and together they have all.
  void check(int q, int kv) {
    const auto found = computes_.find({q, kv});
    if (found == computes_.end()) {
      if (!script_.problem().mask.is_empty(shard(q), shard(kv))) {
        findings_.add("q[{}] x kv[{}] is never computed", q, kv);
      }
      return;
    }
    const std::vector<Placed>& computes = found->second;
    if (computes.size() == 1 && is_whole(*computes.front().compute)) return;

    bool disjoint = true;
    for (std::size_t a = 0; a < computes.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        const Compute &x = *computes[a].compute, &y = *computes[b].compute;
        const int heads = intersection(x.heads, y.heads).size();
        if (heads <= 0) continue;
        const std::int64_t twice =
            heads * pairs(q, intersection(x.q_rows, y.q_rows), kv, intersection(x.kv_rows, y.kv_rows));
        if (twice == 0) continue;
        disjoint = false;
        findings_.add("{} (query, key, head) are computed twice: {}; {}", twice, describe(computes[b]),
                      describe(computes[a]));
      }
    }
    if (!disjoint) return;

    std::int64_t computed = 0;
    for (const Placed& placed : computes) {
      const Compute& compute = *placed.compute;
      computed += compute.heads.size() * pairs(q, compute.q_rows, kv, compute.kv_rows);
    }
    const std::int64_t all = script_.problem().heads * script_.problem().mask.pairs(shard(q), shard(kv));
    if (computed != all) {
      findings_.add("q[{}] x kv[{}]: {} of {} (query, key, head) are never computed", q, kv, all - computed,
                    all);
    }
  }

  const Script& script_;
  Findings& findings_;
  std::map<std::pair<int, int>, std::vector<Placed>> computes_;
};

}  // namespace

void check_coverage(const Script& script, Findings& findings) {
  Coverage(script, findings).check();
}

}  // namespace annulus::plan::validation
