#include <annulus/attention/sparsity/audit.hpp>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cmath>
#include <utility>

#include <annulus/base/error.hpp>

#include "attention/kernels/mask_on.hpp"
#include "attention/kernels/runs_on.hpp"
#include "attention/kernels/scores.hpp"
#include "attention/sparsity/selection.hpp"
#include "attention/sparsity/take_rows.hpp"
#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/instantiate.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "base/kokkos/pack.hpp"
#include "base/splitmix.hpp"

namespace annulus::sparsity {

namespace audit_detail {  // named: device compilers want lambdas and their captures to have linkage

// Scores that a rank holds at a time, which bounds the memory of an audit: 32 MiB of them.
constexpr std::int64_t most_scores = std::int64_t{1} << 23;
// Queries at a time. On the host a thread goes over keys, whose scores lie so many numbers apart: the caches
// hold them until the next query comes. A device wants many threads.
template <class Exec>
constexpr std::int64_t most_queries = annulus::detail::host_memory<Exec> ? 64 : 1024;

constexpr float lowest = -Kokkos::Experimental::infinity_v<float>;

/// Which pairs the heads of a list have selected.
struct ListedPairs {
  MaskRule blocks;  // the block list, or the bits of queries
  const std::int64_t* columns = nullptr;
  std::int64_t most_columns = 0;

  KOKKOS_FUNCTION bool has_column(std::int64_t key) const {
    std::int64_t low = 0, high = most_columns;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (columns[middle] < key) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low < most_columns && columns[low] == key;
  }
  KOKKOS_FUNCTION bool holds(std::int64_t query, std::int64_t key) const {
    return blocks.block_allows(query, key) || has_column(key);
  }
};

/// The selection of query heads, for a kernel.
struct SelectedBy {
  bool all = true;  // pairs
  ListedPairs lists;
  std::int64_t first_head = 0;

  /// What a head has selected; heads count from the first one.
  KOKKOS_FUNCTION ListedPairs of(std::int64_t head) const {
    const std::int64_t list = (first_head + head) / lists.blocks.heads_of_list;
    return {lists.blocks.of_list(list), lists.columns + list * lists.most_columns, lists.most_columns};
  }
};

/// Scores of some queries of several heads with this rank's keys, and dP of the same pairs. Work is dealt out
/// by head, block of keys and query.
template <class Exec>
struct ScoredPairs {
  Array3<float, Exec> scores, d_probabilities;  // (heads, keys, queries)
  const std::int64_t* queries;                  // their positions
  PositionMap keys;
  MaskRule mask;
  float soft_cap;
  std::int64_t block, blocks;  // of keys: positions, and how many there are

  std::int64_t items() const { return static_cast<std::int64_t>(heads() * count()) * blocks; }
  KOKKOS_FUNCTION std::int64_t heads() const { return static_cast<std::int64_t>(scores.extent(0)); }
  KOKKOS_FUNCTION std::int64_t count() const { return static_cast<std::int64_t>(scores.extent(2)); }

  struct Item {
    std::int64_t head, block, query;
  };
  KOKKOS_FUNCTION Item item(std::int64_t i) const {
    return {i / count() / blocks, i / count() % blocks, i % count()};
  }

  /// Calls f(row, key position) for the keys of a block that the mask allows.
  template <class F>
  KOKKOS_FUNCTION void for_keys(const Item& item, const F& f) const {
    const std::int64_t query = queries[item.query];
    const KeyRange range = mask.keys(query);
    const std::int64_t first = item.block * block, behind = first + block,
                       end = keys.rows_below(range.end < behind ? range.end : behind);
    for (std::int64_t row = keys.rows_below(range.begin > first ? range.begin : first); row < end;) {
      const std::int64_t run = keys.end_of_run(row), side_by_side = run < end ? run : end;
      for (std::int64_t key = keys(row); row < side_by_side; ++row, ++key)
        if (range.contains(key) && mask.block_allows(query, key)) f(row, key);
    }
  }
  KOKKOS_FUNCTION float score(const Item& item, std::int64_t row) const {
    const float product = scores(item.head, row, item.query);
    return soft_cap > 0 ? soft_cap * Kokkos::tanh(product / soft_cap) : product;
  }
  /// The derivative of a capped score.
  KOKKOS_FUNCTION double slope(float score) const {
    const double share = soft_cap > 0 ? static_cast<double>(score) / static_cast<double>(soft_cap) : 0.0;
    return 1 - share * share;
  }
};

/// maxima (heads, queries) = the sinks, from that of the first head on.
template <class Exec, class T>
void start_with_sinks(const Exec& exec, const T* sinks, const Array2<float, Exec>& maxima) {
  const auto queries = static_cast<std::int64_t>(maxima.extent(1));
  Kokkos::parallel_for(
      "annulus::sparsity::audited_sinks", Kokkos::RangePolicy<Exec>(exec, 0, maxima.size()),
      KOKKOS_LAMBDA(const std::int64_t i) {
        maxima(i / queries, i % queries) = static_cast<float>(sinks[i / queries]);
      });
}

/// maxima (heads, queries): raised to the largest score.
template <class Exec>
void raise_maxima(const Exec& exec, const ScoredPairs<Exec>& pairs, const Array2<float, Exec>& maxima) {
  Kokkos::parallel_for(
      "annulus::sparsity::audited_maxima", Kokkos::RangePolicy<Exec>(exec, 0, pairs.items()),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const auto item = pairs.item(i);
        float highest = lowest;
        pairs.for_keys(item, [&](std::int64_t row, std::int64_t) {
          highest = Kokkos::fmax(highest, pairs.score(item, row));
        });
        if (highest > lowest) Kokkos::atomic_max(&maxima(item.head, item.query), highest);
      });
}

/// What a row adds up to, with e = exp(score − largest score).
enum RowSum : std::uint8_t { of_e, of_e_exponent, of_e_d_p, row_sums };  // the exponent, and dP, times e

/// sums (RowSum, heads, blocks, queries), written.
template <class Exec>
void sum_rows(const Exec& exec, const ScoredPairs<Exec>& pairs, const Array2<float, Exec>& maxima,
              const Array4<double, Exec>& sums) {
  Kokkos::parallel_for(
      "annulus::sparsity::audited_rows", Kokkos::RangePolicy<Exec>(exec, 0, pairs.items()),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const auto item = pairs.item(i);
        const float highest = maxima(item.head, item.query);
        double of_row[row_sums] = {};
        pairs.for_keys(item, [&](std::int64_t row, std::int64_t) {
          const float exponent = pairs.score(item, row) - highest;
          const auto e = static_cast<double>(Kokkos::exp(exponent));
          of_row[of_e] += e;
          of_row[of_e_exponent] += e * static_cast<double>(exponent);
          of_row[of_e_d_p] += e * static_cast<double>(pairs.d_probabilities(item.head, row, item.query));
        });
        for (int sum = 0; sum < row_sums; ++sum) sums(sum, item.head, item.block, item.query) = of_row[sum];
      });
}

/// totals (RowSum, heads, queries) = the sums over blocks, in their order.
template <class Exec>
void add_blocks(const Exec& exec, const Array4<double, Exec>& sums, const Array3<double, Exec>& totals) {
  const auto blocks = static_cast<std::int64_t>(sums.extent(2)),
             heads = static_cast<std::int64_t>(sums.extent(1)),
             queries = static_cast<std::int64_t>(sums.extent(3));
  Kokkos::parallel_for(
      "annulus::sparsity::audited_blocks", Kokkos::RangePolicy<Exec>(exec, 0, totals.size()),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t sum = i / queries / heads, head = i / queries % heads, query = i % queries;
        double total = 0;
        for (std::int64_t block = 0; block < blocks; ++block) total += sums(sum, head, block, query);
        totals(sum, head, query) = total;
      });
}

/// Sinks, from that of the first head on, join the rows.
template <class Exec, class T>
void add_sinks(const Exec& exec, const T* sinks, const Array2<float, Exec>& maxima,
               const Array3<double, Exec>& totals) {
  const auto queries = static_cast<std::int64_t>(maxima.extent(1));
  Kokkos::parallel_for(
      "annulus::sparsity::audited_sinks", Kokkos::RangePolicy<Exec>(exec, 0, maxima.size()),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const std::int64_t head = i / queries, query = i % queries;
        const auto exponent = static_cast<double>(static_cast<float>(sinks[head]) - maxima(head, query));
        totals(of_e, head, query) += Kokkos::exp(exponent);
        totals(of_e_exponent, head, query) += Kokkos::exp(exponent) * exponent;
      });
}

/// What a row has in a block of keys: sums of P and of |dS|, over all pairs and over the selected ones.
enum BlockSum : std::uint8_t { of_p, of_selected_p, of_d_s, of_selected_d_s, block_sums };

/// sums (BlockSum, heads, blocks, queries), written.
template <class Exec>
void sum_blocks(const Exec& exec, const ScoredPairs<Exec>& pairs, const SelectedBy& selected,
                const Array2<float, Exec>& maxima, const Array3<double, Exec>& totals,
                const Array4<double, Exec>& sums) {
  Kokkos::parallel_for(
      "annulus::sparsity::audited_pairs", Kokkos::RangePolicy<Exec>(exec, 0, pairs.items()),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const auto item = pairs.item(i);
        const float highest = maxima(item.head, item.query);
        const double all = totals(of_e, item.head, item.query),
                     d = totals(of_e_d_p, item.head, item.query) / all;
        const ListedPairs listed = selected.all ? ListedPairs{} : selected.of(item.head);
        const std::int64_t query = pairs.queries[item.query];
        double of_block[block_sums] = {};
        pairs.for_keys(item, [&](std::int64_t row, std::int64_t key) {
          const float score = pairs.score(item, row);
          const double p = static_cast<double>(Kokkos::exp(score - highest)) / all,
                       d_p = static_cast<double>(pairs.d_probabilities(item.head, row, item.query)),
                       d_s = Kokkos::fabs(p * (d_p - d) * pairs.slope(score));
          of_block[of_p] += p;
          of_block[of_d_s] += d_s;
          if (selected.all || listed.holds(query, key)) {
            of_block[of_selected_p] += p;
            of_block[of_selected_d_s] += d_s;
          }
        });
        for (int sum = 0; sum < block_sums; ++sum)
          sums(sum, item.head, item.block, item.query) = of_block[sum];
      });
}

/// One position of each of `count` parts of the sequence, increasing.
std::vector<std::int64_t> audited_positions(std::int64_t tokens, std::int64_t count, std::int64_t number) {
  std::vector<std::int64_t> positions;
  for (std::int64_t part = 0; part < count; ++part) {
    const std::int64_t begin = part * tokens / count, end = (part + 1) * tokens / count;
    const std::uint64_t any =
        splitmix64(splitmix64(static_cast<std::uint64_t>(number)) + static_cast<std::uint64_t>(part));
    positions.push_back(begin + static_cast<std::int64_t>(any % static_cast<std::uint64_t>(end - begin)));
  }
  return positions;
}

template <class View>
std::vector<typename View::non_const_value_type> on_host(const Queue& queue, const View& view) {
  std::vector<typename View::non_const_value_type> values(view.size());
  queue.copy_to_host(values.data(), view.data(), values.size() * sizeof values.front());
  queue.fence("annulus::sparsity::AttentionAudit: sums go to the host");
  return values;
}

}  // namespace audit_detail

template <class Exec, class T>
class AttentionAudit<Exec, T>::Impl {
 public:
  Impl(const Exec& exec, comm::Communicator& communicator, Sequence sequence, const Options& options)
      : communicator_(communicator),
        sequence_(std::move(sequence)),
        tokens_(sequence_.masks.at(0).tokens()),
        runs_(exec, {sequence_.layout}),
        rows_(runs_(sequence_.rows)),
        positions_(audit_detail::audited_positions(
            tokens_, options.queries > 0 ? std::min(options.queries, tokens_) : tokens_, options.number)),
        ends_(positions_.size(), tokens_ - 1) {
    positions_on_.set(exec, "annulus::sparsity::audited_positions", positions_);
    ends_on_.set(exec, "annulus::sparsity::audited_ends", ends_);
    for (const Mask& mask : sequence_.masks)
      masks_.push_back(std::make_unique<attention::MaskOn<Exec>>(exec, mask));
  }
  ~Impl() { positions_on_.wait_for_copy(), ends_on_.wait_for_copy(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void look_at(const Exec& exec, int layer, const Arrays& arrays, const Selection<Exec>* selection) {
    using namespace audit_detail;  // NOLINT(google-build-using-namespace): helpers of this function
    const Region region("annulus::sparsity::AttentionAudit::look_at");
    const auto heads = static_cast<std::int64_t>(arrays.q.extent(1)),
               kv_heads = static_cast<std::int64_t>(arrays.k.extent(1));
    LayerAudit& audit = audits_.emplace_back();
    audit.layer = layer;
    audit.selects = selection != nullptr;
    audit.heads.resize(static_cast<std::size_t>(heads));
    audit.pictured_head = static_cast<int>(layer % heads);
    audit.block = ceil_divide(tokens_, most_blocks);
    audit.weights.resize(static_cast<std::size_t>(blocks() * blocks()));
    audit.gradients.resize(audit.weights.size());
    if (selection != nullptr) set_densities(exec, layer, *selection, audit);
    const Lists<Exec> lists = selection != nullptr ? expand(exec, *selection) : Lists<Exec>{};
    const SelectedBy selected = selection != nullptr ? selected_by(lists, *selection) : SelectedBy{};

    const std::int64_t group = heads / kv_heads, queries = std::ssize(positions_),
                       rows = ceil_divide(tokens_, std::int64_t{communicator_.size()}),
                       at_once = std::clamp<std::int64_t>(most_scores / (group * rows) / 16 * 16, 16,
                                                          most_queries<Exec>);
    for (std::int64_t kv_head = 0; kv_head < kv_heads; ++kv_head)
      for (std::int64_t first = 0; first < queries; first += at_once)
        look_at(exec, arrays, selected, {kv_head, group, first, std::min(at_once, queries - first)}, audit);
    // What each rank's keys have added.
    std::vector<double> sums;
    for_sums(audit, [&](double& sum) { sums.push_back(sum); });
    communicator_.all_reduce(Queue(HostExec()), sums.data(), sums.size(), DType::f64, comm::ReduceOp::sum);
    auto next = sums.begin();
    for_sums(audit, [&](double& sum) { sum = *next++; });
  }

  std::vector<LayerAudit> take() {
    std::ranges::sort(audits_, {}, &LayerAudit::layer);
    return std::exchange(audits_, {});
  }

 private:
  std::int64_t blocks() const { return ceil_divide(tokens_, ceil_divide(tokens_, most_blocks)); }
  const Mask& mask_of(int layer) const {
    return sequence_
        .masks[static_cast<std::size_t>(sequence_.mask_of_layer[static_cast<std::size_t>(layer)])];
  }

  // Those over keys, of which each rank knows its own.
  template <class Visit>
  static void for_sums(LayerAudit& audit, const Visit& visit) {
    for (HeadAudit& head : audit.heads)
      visit(head.recall), visit(head.gradient), visit(head.selected_gradient);
    for (double& sum : audit.weights) visit(sum);
    for (double& sum : audit.gradients) visit(sum);
  }

  void set_densities(const Exec& exec, int layer, const Selection<Exec>& selection, LayerAudit& audit) const {
    const auto counts = Owned<Array1<std::int64_t, Exec>>::zeroed(
        exec, MemoryCategory::workspace, "annulus::sparsity::audited_counts", selection.all_lists());
    count_selected_of_lists<Exec>(exec, selection, *counts);
    const std::vector<std::int64_t> pairs = audit_detail::on_host(Queue(exec), counts.view());
    const PositionMap all = Layout().shard(tokens_, 1, 0);
    const auto allowed = static_cast<double>(mask_of(layer).pairs(all, all));
    const std::size_t group = audit.heads.size() / static_cast<std::size_t>(selection.lists);
    for (std::size_t head = 0; head < audit.heads.size(); ++head)
      audit.heads[head].density = static_cast<double>(pairs[head / group]) / allowed;
  }

  audit_detail::SelectedBy selected_by(const Lists<Exec>& lists, const Selection<Exec>& selection) const {
    const executor::BlockLists of_heads = lists.blocks();
    audit_detail::SelectedBy selected{.all = false, .lists = {}};
    MaskRule& blocks = selected.lists.blocks;
    blocks.tokens = tokens_;
    blocks.block_size = of_heads.block_size;
    blocks.heads_of_list = of_heads.heads_of_list;
    blocks.block_lists = selection.all_lists();
    blocks.block_row_starts = of_heads.block_row_starts;
    blocks.block_columns = of_heads.block_columns;
    blocks.query_blocks = of_heads.query_blocks;
    selected.lists.columns = lists.columns.view().data();
    selected.lists.most_columns = selection.most_columns();
    return selected;
  }

  // Query heads of a kv head, and some of the queries.
  struct Part {
    std::int64_t kv_head, group, first, count;
    std::int64_t first_head() const { return kv_head * group; }
  };

  // Adds what this rank's keys have.
  void look_at(const Exec& exec, const Arrays& arrays, audit_detail::SelectedBy selected, const Part& part,
               LayerAudit& audit) {
    using namespace audit_detail;  // NOLINT(google-build-using-namespace): helpers of this function
    constexpr auto workspace = MemoryCategory::workspace;
    const Queue queue(exec);
    const auto of_heads = [&](const Array4<const T, Exec>& all, std::int64_t first, std::int64_t count) {
      return Array4<const T, Exec>(all.data() + first * rows_.count * all.extent_int(3), 1, count,
                                   rows_.count, all.extent(3));
    };
    const auto width = static_cast<std::int64_t>(arrays.q.extent(3)),
               v_width = static_cast<std::int64_t>(arrays.v.extent(3)), all_queries = part.group * part.count;
    // Q and dO one after the other, so that one sum brings both to all ranks.
    const auto memory = Owned<Array1<T, Exec>>::uninitialized(
        exec, workspace, "annulus::sparsity::audited_queries", all_queries * (width + v_width));
    const Array4<T, Exec> q(memory.view().data(), 1, part.group, part.count, width),
        d_out(q.data() + q.size(), 1, part.group, part.count, v_width);
    const ListedRows wanted{positions_on_.data() + part.first, part.count};
    take_rows<Exec, T>(exec, of_heads(arrays.q, part.first_head(), part.group), rows_, wanted, q);
    take_rows<Exec, T>(exec, of_heads(arrays.d_out, part.first_head(), part.group), rows_, wanted, d_out);
    communicator_.all_reduce(queue, *memory);

    const MaskRule& mask =
        masks_[static_cast<std::size_t>(sequence_.mask_of_layer[static_cast<std::size_t>(audit.layer)])]
            ->rule();
    const auto scores = Owned<Array3<float, Exec>>::uninitialized(
                   exec, workspace, "annulus::sparsity::audited_scores", part.group, rows_.count, part.count),
               d_probabilities = Owned<Array3<float, Exec>>::uninitialized(
                   exec, workspace, "annulus::sparsity::audited_d_probabilities", part.group, rows_.count,
                   part.count);
    const auto maxima = Owned<Array2<float, Exec>>::uninitialized(
        exec, workspace, "annulus::sparsity::audited_maxima", part.group, part.count);
    const auto score = [&](const Array4<const T, Exec>& of_queries, const Array4<const T, Exec>& of_keys,
                           float scale, const Array3<float, Exec>& to) {
      // The mask's rule says later which keys a query sees; of a causal one no later ones.
      attention::causal_scores<Exec, T>(
          exec,
          {.q = of_queries,
           .k = of_keys,
           .k_positions = rows_,
           .scale = scale,
           .q_listed = (mask.right == 0 ? positions_on_ : ends_on_).data() + part.first},
          to, Array1<float, Exec>(maxima.view().data(), maxima.view().size()));
    };
    Kokkos::deep_copy(exec, *maxima, lowest);
    score(q, of_heads(arrays.k, part.kv_head, 1), arrays.scale, *scores);
    score(d_out, of_heads(arrays.v, part.kv_head, 1), 1.0f, *d_probabilities);

    const ScoredPairs<Exec> pairs{.scores = *scores,
                                  .d_probabilities = *d_probabilities,
                                  .queries = positions_on_.data() + part.first,
                                  .keys = rows_,
                                  .mask = mask,
                                  .soft_cap = arrays.soft_cap,
                                  .block = audit.block,
                                  .blocks = blocks()};
    const bool sinks = arrays.sinks.data() != nullptr;
    Kokkos::deep_copy(exec, *maxima, lowest);
    if (sinks) start_with_sinks<Exec, T>(exec, arrays.sinks.data() + part.first_head(), *maxima);
    raise_maxima<Exec>(exec, pairs, *maxima);
    communicator_.all_reduce(queue, *maxima, comm::ReduceOp::max);
    const auto sums =
        Owned<Array4<double, Exec>>::uninitialized(exec, workspace, "annulus::sparsity::audited_sums",
                                                   int{block_sums}, part.group, blocks(), part.count);
    const auto totals = Owned<Array3<double, Exec>>::uninitialized(
        exec, workspace, "annulus::sparsity::audited_totals", int{row_sums}, part.group, part.count);
    sum_rows<Exec>(exec, pairs, *maxima, *sums);
    add_blocks<Exec>(exec, *sums, *totals);
    communicator_.all_reduce(queue, *totals);
    if (sinks) add_sinks<Exec, T>(exec, arrays.sinks.data() + part.first_head(), *maxima, *totals);
    selected.first_head = part.first_head();
    sum_blocks<Exec>(exec, pairs, selected, *maxima, *totals, *sums);
    add(part, on_host(queue, totals.view()), on_host(queue, sums.view()), audit);
  }

  // totals (RowSum, heads, queries), which all ranks have alike, and sums (BlockSum, heads, blocks, queries)
  // of this rank's keys.
  void add(const Part& part, const std::vector<double>& totals, const std::vector<double>& sums,
           LayerAudit& audit) const {
    using namespace audit_detail;  // NOLINT(google-build-using-namespace): helpers of this function
    for (std::int64_t head = 0; head < part.group; ++head) {
      HeadAudit& to = audit.heads[static_cast<std::size_t>(part.first_head() + head)];
      const bool pictured = part.first_head() + head == audit.pictured_head;
      for (std::int64_t query = 0; query < part.count; ++query) {
        const auto total = [&](RowSum sum) {
          return totals[static_cast<std::size_t>((sum * part.group + head) * part.count + query)];
        };
        if (total(of_e) == 0) continue;  // a row without keys
        ++to.queries;
        to.entropy += std::log(total(of_e)) - total(of_e_exponent) / total(of_e);
        const std::int64_t row = positions_[static_cast<std::size_t>(part.first + query)] / audit.block;
        for (std::int64_t block = 0; block < blocks(); ++block) {
          const auto sum = [&](BlockSum which) {
            return sums[static_cast<std::size_t>(
                ((which * part.group + head) * blocks() + block) * part.count + query)];
          };
          to.recall += sum(of_selected_p);
          to.gradient += sum(of_d_s);
          to.selected_gradient += sum(of_selected_d_s);
          if (!pictured) continue;
          const auto cell = static_cast<std::size_t>(row * blocks() + block);
          audit.weights[cell] += sum(of_p);
          audit.gradients[cell] += sum(of_d_s);
        }
      }
    }
  }

  comm::Communicator& communicator_;
  Sequence sequence_;
  std::int64_t tokens_;
  attention::RunsOn<Exec> runs_;
  PositionMap rows_;
  std::vector<std::int64_t> positions_;  // of the audited queries
  std::vector<std::int64_t> ends_;       // the last position for each, from which all keys are seen
  attention::ValuesOn<Exec, std::int64_t> positions_on_, ends_on_;
  std::vector<std::unique_ptr<attention::MaskOn<Exec>>> masks_;
  std::vector<LayerAudit> audits_;
};

template <class Exec, class T>
AttentionAudit<Exec, T>::AttentionAudit(const Exec& exec, comm::Communicator& communicator, Sequence sequence,
                                        const Options& options)
    : impl_(std::make_unique<Impl>(exec, communicator, std::move(sequence), options)) {}
template <class Exec, class T>
AttentionAudit<Exec, T>::~AttentionAudit() = default;

template <class Exec, class T>
void AttentionAudit<Exec, T>::look_at(const Exec& exec, int layer, const Arrays& arrays,
                                      const Selection<Exec>* selection) {
  impl_->look_at(exec, layer, arrays, selection);
}
template <class Exec, class T>
std::vector<LayerAudit> AttentionAudit<Exec, T>::take() {
  return impl_->take();
}

#define ANNULUS_INSTANTIATE(EXEC, T) template class AttentionAudit<EXEC, T>;
ANNULUS_FOR_ATTENTION(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::sparsity
