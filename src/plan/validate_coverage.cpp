#include <algorithm>
#include <span>
#include <tuple>

#include "plan/describe.hpp"
#include "plan/rectangle.hpp"
#include "plan/validation.hpp"

namespace annulus::plan::validation {
namespace {

/// A compute of a walked rank; or, raised by `by`, of the rank in whose place one stands.
struct Placed {
  int q, kv;  // shards, so raised that the queries' owner is walked
  int rank, step;
  const Compute* compute;
  int by;
};

class Coverage {
 public:
  Coverage(const Script& script, Findings& findings) : script_(script), findings_(findings) {
    for (int rank = 0; rank < script.walked(); ++rank) {
      for (int step = 0; step < script.plan.steps; ++step) {
        for (const Compute& compute : script.at(rank, step).computes) {
          const int by = -script.distance(compute.q_shard);
          computes_.push_back({compute.q_shard + by, script.translation.rank(compute.kv_shard, by), rank,
                               step, &compute, by});
        }
      }
    }
    std::ranges::stable_sort(computes_, {}, [](const Placed& p) { return std::pair(p.q, p.kv); });
  }

  void check() {
    auto next = computes_.begin();
    for (int q = 0; q < script_.walked(); ++q) {
      for (int kv = 0; kv < script_.ranks(); ++kv) {
        const auto begin = next;
        while (next != computes_.end() && next->q == q && next->kv == kv) ++next;
        check(q, kv, {begin, next});
      }
    }
  }

 private:
  using Computes = std::span<const Placed>;

  const PositionMap& shard(int rank) const { return script_.shards[static_cast<std::size_t>(rank)]; }

  std::int64_t pairs(int q, RowRange q_rows, int kv, RowRange kv_rows) const {
    if (q_rows.empty() || kv_rows.empty()) return 0;
    return script_.problem().mask.pairs(shard(q).slice(q_rows), shard(kv).slice(kv_rows));
  }

  bool has_all_rows(const Compute& compute) const {
    return compute.q_rows.size() == shard(compute.q_shard).count &&
           compute.kv_rows.size() == shard(compute.kv_shard).count;
  }

  /// Whole shards, of which each compute does other heads: exact whatever the mask.
  bool is_split_by_heads(Computes computes) {
    if (!std::ranges::all_of(computes, [this](const Placed& p) { return has_all_rows(*p.compute); }))
      return false;
    heads_.clear();
    for (const Placed& placed : computes) heads_.push_back(placed.compute->heads);
    std::ranges::sort(heads_, {}, &HeadRange::begin);
    int end = 0;
    for (const HeadRange& heads : heads_) {
      if (heads.begin != end) return false;
      end = heads.end;
    }
    return end == script_.problem().heads;
  }

  /// All pairs of one shard pair, and of those for which it stands, since a mask does not repeat itself.
  void check(int q, int kv, Computes computes) {
    if (!computes.empty() && is_split_by_heads(computes)) return;
    for (int by = 0; by < script_.ranks(); by += script_.walked()) {
      const int other_q = q + by, other_kv = script_.translation.rank(kv, by);
      if (!computes.empty()) {
        check_pairs(other_q, other_kv, by, computes);
      } else if (!script_.problem().mask.is_empty(shard(other_q), shard(other_kv))) {
        findings_.add("q[{}] x kv[{}] is never computed", other_q, other_kv);
      }
    }
  }

  /// No two computes share an unmasked pair, and together they have all.
  void check_pairs(int q, int kv, int by, Computes computes) {
    std::vector<Compute> here;
    for (const Placed& placed : computes)
      here.push_back(script_.translation.compute(*placed.compute, placed.by + by));
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
        findings_.add("{} (query, key, head) are computed twice: {}; {}", twice, describe(computes[b], y, by),
                      describe(computes[a], x, by));
      }
    }
    if (!disjoint) return;

    std::int64_t computed = 0;
    for (const Compute& compute : here)
      computed += compute.heads.size() * pairs(q, compute.q_rows, kv, compute.kv_rows);
    const std::int64_t all = script_.problem().heads * script_.problem().mask.pairs(shard(q), shard(kv));
    if (computed != all) {
      findings_.add("q[{}] x kv[{}]: {} of {} (query, key, head) are never computed", q, kv, all - computed,
                    all);
    }
  }

  std::string describe(const Placed& placed, const Compute& compute, int by) const {
    return fmt::format("rank {}, step {}: {}", script_.translation.rank(placed.rank, placed.by + by),
                       placed.step, plan::describe(compute));
  }

  const Script& script_;
  Findings& findings_;
  std::vector<Placed> computes_;  // by shards, then in the order of ranks and steps
  std::vector<HeadRange> heads_;
};

}  // namespace

void check_coverage(const Script& script, Findings& findings) {
  Coverage(script, findings).check();
}

}  // namespace annulus::plan::validation
