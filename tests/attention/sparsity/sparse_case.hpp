#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <annulus/attention/comm/loopback.hpp>
#include <annulus/attention/executor/attention.hpp>
#include <annulus/attention/kernels/local.hpp>
#include <annulus/attention/sparsity/attention.hpp>
#include <annulus/attention/sparsity/audit.hpp>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "attention/sparsity/pattern.hpp"
#include "attention/sparsity/selection_memory.hpp"
#include "support/attention/rank_rows.hpp"
#include "support/attention/schedule_cases.hpp"
#include "support/pass_through.hpp"

/// Sparse attention over ranks that are threads, and the same pairs in double precision.
namespace annulus::test {

/// A selection in the host's memory.
struct HostSelection {
  std::int64_t tokens = 0, batch = 0, heads = 0, lists = 0, words = 0, most = 0, listed = 0;
  std::int64_t block = sparsity::block_tokens;
  std::int64_t pattern_rows = 1;  // block rows, queries, or one for all
  bool of_queries = false;
  std::vector<std::uint32_t> blocks;  // (batch · lists, pattern rows, words)
  std::vector<std::int32_t> columns;  // (batch · lists, most)
  std::vector<std::vector<std::int64_t>>
      documents;  // starts of all sequences, or of each; none: no documents

  static HostSelection of(const sparsity::Selection<TestExec>& selection) {
    const auto blocks = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), selection.blocks.view());
    const auto columns = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), selection.columns.view());
    EXPECT_EQ(static_cast<std::int64_t>(blocks.extent(1)),
              selection.pattern_rows == sparsity::PatternRows::all        ? 1
              : selection.pattern_rows == sparsity::PatternRows::of_block ? selection.pattern_blocks()
                                                                          : selection.tokens);
    return {selection.tokens,
            selection.batch,
            selection.heads,
            selection.lists,
            static_cast<std::int64_t>(blocks.extent(2)),
            selection.most_columns(),
            selection.listed,
            selection.block,
            static_cast<std::int64_t>(blocks.extent(1)),
            selection.pattern_rows == sparsity::PatternRows::of_query,
            {blocks.data(), blocks.data() + blocks.size()},
            {columns.data(), columns.data() + columns.size()},
            documents_of(selection)};
  }
  static std::vector<std::vector<std::int64_t>> documents_of(const sparsity::Selection<TestExec>& selection) {
    std::vector<std::vector<std::int64_t>> sets;
    for (std::int64_t set = 0; selection.documents && set < selection.documents->sets(); ++set) {
      const auto starts = selection.documents->of_set(set);
      sets.emplace_back(starts.begin(), starts.end());
    }
    return sets;
  }
  /// Whether the query and the key before it are in one document of a list's sequence.
  bool in_one_document(std::int64_t list, std::int64_t q, std::int64_t k) const {
    if (documents.empty()) return true;
    const auto& starts = documents[documents.size() == 1 ? 0 : static_cast<std::size_t>(list / lists)];
    return std::ranges::upper_bound(starts, k) == std::ranges::upper_bound(starts, q);
  }

  bool slash(std::int64_t list, std::int64_t distance) const { return holds(list, 0, distance); }
  /// Whether a pattern row has a bit: of the block so many blocks before the diagonal, or, of a query, of the
  /// block of keys with this number.
  bool holds(std::int64_t list, std::int64_t row, std::int64_t bit) const {
    const auto word = static_cast<std::size_t>((list * pattern_rows + row) * words + bit / 32);
    return (blocks[word] >> (bit % 32) & 1u) != 0;
  }
  std::vector<std::int64_t> columns_of(std::int64_t list) const {
    std::vector<std::int64_t> found;
    for (std::int64_t j = 0; j < most; ++j) {
      const std::int64_t column = columns[static_cast<std::size_t>(list * most + j)];
      if (column < tokens) found.push_back(column);
    }
    return found;
  }
  /// Whether list `list` holds the causal pair.
  bool allows(std::int64_t list, std::int64_t q, std::int64_t k) const {
    if (k > q || !in_one_document(list, q, k)) return false;
    if (of_queries) return holds(list, q, k / block);
    if (holds(list, pattern_rows == 1 ? 0 : q / block, q / block - k / block)) return true;
    const auto first = columns.begin() + list * most;  // they increase
    return std::binary_search(first, first + most, k);
  }
  friend bool operator==(const HostSelection&, const HostSelection&) = default;
};

/// Exactly the pairs of a selection as a mask: block lists of blocks of one token.
class ExactPairs {
 public:
  explicit ExactPairs(const HostSelection& selection)
      : lists_({.tokens = selection.tokens}, 1, selection.batch * selection.heads, 1,
               [&](std::int64_t head, std::int64_t q, std::int64_t k) {
                 return selection.allows(head / (selection.heads / selection.lists), q, k);
               }) {}

  const MaskRule& rule() const { return lists_.rule(); }
  std::int64_t pairs() const { return std::ssize(lists_.columns()); }

 private:
  HostHeadLists lists_;
};

/// How sparse attention is spread.
struct SparseRun {
  std::string options = "vertical-slash";
  Topology topology{};
  Layout layout{};
  std::string schedule = "ring";
  attention::Kernel kernel = attention::Kernel::automatic;
  bool one_plan_a_sequence = false;
  std::vector<std::string> masks = {};  ///< of each sequence, in the place of the problem's
  bool selects_alone = false;           ///< no passes: SparseResult::selection alone
  bool keeps_columns = false;
  bool claims_nothing = false;  ///< plans do not say that queries stay, so columns are gathered
  /// In the place of the pattern's scores; a list counts over the batch. For moba and infllm-v2.
  using Score = float(std::int64_t list, std::int64_t position, std::int64_t block);
  Score* score = nullptr;
};

/// This rank's rows of SparseRun::score, (batch, lists, rows, blocks).
inline Array4<const float, TestExec> scores_of_rows(const TestExec& exec, const SparseRun& run,
                                                    const plan::Problem& of, const PositionMap& rows) {
  const std::int64_t tokens = of.mask.tokens();
  const auto form = sparsity::selection_form(sparsity::PatternOptions::parse(run.options), tokens);
  const std::int64_t lists = form.of_query_heads ? of.heads : of.kv_heads;
  const Array4<float, TestExec> scores("scores", of.batch, lists, rows.count,
                                       ceil_divide(tokens, form.block));
  const auto host = Kokkos::create_mirror_view(scores);
  for (std::int64_t list = 0; list < of.batch * lists; ++list)
    for (std::int64_t row = 0; row < rows.count; ++row)
      for (std::int64_t b = 0; b < std::int64_t(host.extent(3)); ++b)
        host(list / lists, list % lists, row, b) = run.score(list, rows(row), b);
  Kokkos::deep_copy(exec, scores, host);
  exec.fence("annulus::test: the scores are there");
  return scores;
}

struct SparseResult {
  AttentionResult result;
  HostSelection selection;
  sparsity::SelectedPairs pairs;
  sparsity::LayerAudit audit;       ///< of all queries of the first sequence
  std::int64_t summed_bytes = 0;    ///< of a rank, in the sums over ranks of a forward and a backward pass
  std::int64_t column_traffic = 0;  ///< plan::column_traffic of both passes
  double recall() const {           ///< over all rows, the mean of the heads
    double sum = 0;
    for (const sparsity::HeadAudit& head : audit.heads) sum += head.recall / head.queries;
    return sum / static_cast<double>(audit.heads.size());
  }
};

/// Counts what sums over ranks are of.
class CountsSums final : public PassThrough {
 public:
  using PassThrough::PassThrough;

  void all_reduce(const Queue& queue, void* data, const comm::Reduction& elements) override {
    bytes += static_cast<std::int64_t>(elements.count * size_of(elements.type));
    PassThrough::all_reduce(queue, data, elements);
  }

  std::int64_t bytes = 0;
};

/// Looks at all of a problem's first sequence, or at so many of its queries, under `mask`.
template <class T>
sparsity::LayerAudit audit_of(const TestExec& exec, comm::Communicator& communicator, const Layout& layout,
                              const Mask& mask, const RankRows<T>& rows,
                              const sparsity::Selection<TestExec>* selection, int layer = 0,
                              const typename sparsity::AttentionAudit<TestExec, T>::Options& options = {}) {
  sparsity::AttentionAudit<TestExec, T> audit(
      exec, communicator,
      {.layout = layout,
       .rows = rows.positions(),
       .masks = {mask},
       .mask_of_layer = std::vector<int>(static_cast<std::size_t>(layer) + 1)},
      options);
  audit.look_at(exec, layer, rows.backward(), selection);
  std::vector<sparsity::LayerAudit> layers = audit.take();
  EXPECT_EQ(layers.size(), 1u);
  EXPECT_EQ(layers.front().layer, layer);
  return std::move(layers.front());
}

/// Selects and runs both passes; every rank must have the same selection, and both passes must give the same
/// bits twice.
template <class T>
SparseResult run_sparse(const AttentionProblem& problem, const SparseRun& run) {
  SparseResult made;
  made.result = problem.empty_result(0);
  std::optional<HostSelection> first;
  std::mutex mutex;
  comm::run_loopback(run.topology, [&](comm::Communicator& ranks) {
    const TestExec exec = rank_instance();
    CountsSums communicator(ranks);
    plan::Problem of = planning_problem(problem, run.topology, run.layout, dtype_of<T>);
    std::vector<executor::Plans> plans;
    plan::Problem of_plan = of;
    std::vector<Mask> masks;
    for (const std::string& mask : run.masks) masks.push_back(Mask::parse(mask, problem.shape.tokens));
    const bool one_each = run.one_plan_a_sequence || !masks.empty();
    if (one_each) of_plan.batch = 1;
    do {
      if (!masks.empty()) of_plan.mask = masks[plans.size()];
      executor::Plans& made_plans = plans.emplace_back(plans_of(run.schedule, of_plan));
      if (run.claims_nothing) made_plans.forward.queries_stay = made_plans.backward->queries_stay = false;
    } while (one_each && std::ssize(plans) < of.batch);
    of.grid = plans.front().forward.problem.grid;
    executor::Settings settings;
    settings.kernel = run.kernel;
    executor::Attention<TestExec, T> dense(exec, communicator, plans, settings);
    sparsity::SparseAttention<TestExec, T> sparse(
        communicator, dense, of, sparsity::PatternOptions::parse(run.options), run.kernel, run.keeps_columns);
    if (!masks.empty()) sparse.set_masks(exec, masks);
    const RankRows<T> rows(exec, problem, of.owned(communicator.rank()));
    const auto forward = rows.forward();
    const auto selection =
        run.score != nullptr ? sparse.select_by_scores(exec, scores_of_rows(exec, run, of, rows.positions()))
                             : sparse.select(exec, forward.q, forward.k, forward.scale);
    const HostSelection here = HostSelection::of(*selection);
    {
      const std::lock_guard lock(mutex);
      if (!first) first = here;
      EXPECT_EQ(here, *first) << "rank " << communicator.rank() << " has another selection";
    }
    if (run.selects_alone) return;
    const auto passes = [&] {
      rows.fill(exec);
      rows.run(exec, sparse, *selection);
      return rows.results(exec);
    };
    communicator.bytes = 0;
    const AttentionResult own = passes();
    const std::int64_t summed_bytes = communicator.bytes;
    EXPECT_TRUE(same_bits(own, passes())) << "other bits in a second run";
    const sparsity::SelectedPairs pairs = sparse.check_pairs(exec);
    const Array finished =
        rows.finished(exec, [&](const auto& arrays) { sparse.forward(exec, arrays, *selection); });
    EXPECT_EQ(finished.values, rounded(own.out, dtype_of<T>).values) << "finished is not out";
    const sparsity::LayerAudit audit = audit_of<T>(
        exec, communicator, run.layout, masks.empty() ? problem.mask : masks.front(), rows, selection.get());
    const std::lock_guard lock(mutex);
    made.pairs = pairs;
    made.summed_bytes = summed_bytes;
    const std::int64_t columns = selection->all_lists() * selection->most_columns();
    made.column_traffic = plan::column_traffic(plans.front().forward, columns) +
                          plan::column_traffic(*plans.front().backward, columns, run.keeps_columns);
    made.audit = audit;
    for (const auto array : AttentionResult::arrays()) {  // 0 where others have rows
      std::vector<double>& sum = (made.result.*array).values;
      const std::vector<double>& more = (own.*array).values;
      std::ranges::transform(sum, more, sum.begin(), std::plus());
    }
  });
  made.selection = *first;
  return made;
}

/// The share of the probability that the selected pairs hold, over all rows and heads of the first sequence.
inline double exact_recall(const AttentionProblem& problem, const Mask& mask, const AttentionResult& sparse) {
  const Array all =
      attention::reference::forward(problem.q, problem.k, problem.v, mask.rule(), problem.scale).lse;
  double sum = 0;
  for (std::int64_t head = 0; head < problem.shape.heads; ++head)
    for (std::int64_t row = 0; row < problem.shape.tokens; ++row)
      sum += std::exp(sparse.lse.row(0, head, row)[0] - all.row(0, head, row)[0]);
  return sum / static_cast<double>(problem.shape.heads * problem.shape.tokens);
}

/// Compares both passes with double precision over exactly the selected pairs.
template <class T>
void expect_exact(const AttentionProblem& problem, const SparseRun& run, const std::string& what,
                  double tolerance = fp32_tolerance) {
  const SparseResult sparse = run_sparse<T>(problem, run);
  const ExactPairs pairs(sparse.selection);
  EXPECT_EQ(sparse.pairs.forward.passes, 2) << what;
  EXPECT_EQ(sparse.pairs.forward.selected, 2 * pairs.pairs()) << what << ": of two passes";
  EXPECT_EQ(sparse.pairs.backward.selected, 2 * pairs.pairs()) << what;
  EXPECT_EQ(sparse.pairs.forward.computed, 2 * pairs.pairs()) << what;
  EXPECT_EQ(sparse.pairs.backward.computed, 2 * pairs.pairs()) << what;
  const AttentionResult exact = problem.reference(pairs.rule());
  EXPECT_EQ(differences(sparse.result, exact, tolerance), "") << what;
  EXPECT_LE(relative_error(sparse.result.lse, exact.lse), fp32_tolerance) << what;
  const Mask first = run.masks.empty() ? problem.mask : Mask::parse(run.masks.front(), problem.shape.tokens);
  EXPECT_NEAR(sparse.recall(), exact_recall(problem, first, exact), 1e-4) << what;
}

/// As expect_exact, of a sequence that is too long for that: some of the documents of its first sequence,
/// each as a problem of its own. Whatever is outside of a document it does not see.
template <class T>
void expect_exact_in_documents(const AttentionProblem& problem, const SparseRun& run,
                               const std::vector<std::size_t>& documents, const std::string& what,
                               double tolerance = fp32_tolerance) {
  const SparseResult sparse = run_sparse<T>(problem, run);
  const HostSelection& selection = sparse.selection;
  const std::vector<std::int64_t>& starts = selection.documents.front();
  for (const std::size_t document : documents) {
    const std::int64_t begin = starts[document], tokens = starts[document + 1] - begin;
    const auto part = [&](const Array& all) {
      Array rows(1, all.heads, tokens, all.width);
      for (std::int64_t head = 0; head < all.heads; ++head)
        std::copy_n(all.row(0, head, begin), tokens * all.width, rows.row(0, head, 0));
      return rows;
    };
    AttentionProblem alone = problem;
    alone.shape.tokens = tokens;
    alone.shape.batch = 1;
    for (const auto array :
         {&AttentionProblem::q, &AttentionProblem::k, &AttentionProblem::v, &AttentionProblem::d_out})
      alone.*array = part(problem.*array);
    const std::int64_t heads_of_list = selection.heads / selection.lists;
    const HostHeadLists pairs({.tokens = tokens}, 1, selection.heads, 1,
                              [&](std::int64_t head, std::int64_t q, std::int64_t k) {
                                return selection.allows(head / heads_of_list, begin + q, begin + k);
                              });
    const AttentionResult exact = alone.reference(pairs.rule()), &all = sparse.result;
    const AttentionResult own{.out = part(all.out),
                              .lse = part(all.lse),
                              .dq = part(all.dq),
                              .dk = part(all.dk),
                              .dv = part(all.dv),
                              .d_sinks = exact.d_sinks};
    const std::string which = fmt::format("{}, document {} of {} tokens", what, document, tokens);
    EXPECT_EQ(differences(own, exact, tolerance), "") << which;
    EXPECT_LE(relative_error(own.lse, exact.lse), fp32_tolerance) << which;
  }
}

/// `count` documents of 1 to 31 tokens, and one of 500 among each 250, as a mask: where each starts.
inline std::vector<std::int64_t> short_documents(std::int64_t count) {
  std::vector<std::int64_t> starts{0};
  for (std::int64_t i = 0; i < count; ++i)
    starts.push_back(starts.back() + (i % 250 == 30 ? 500 : 1 + i * 7919 % 31));
  return starts;
}

/// expect_exact under every schedule, with layouts and four patterns by turns.
inline void expect_exact_under_every_schedule(const AttentionProblem& problem,
                                              const std::array<const char*, 4>& patterns) {
  const char* const layouts[] = {"block-striped:64", "zigzag", "striped", "contiguous"};
  int number = 0;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const std::string& schedule : schedules_on(ranks)) {
      SparseRun run{.options = patterns[number / 4 % 4],
                    .topology = balanced(ranks, ranks == 4 ? 2 : 1),
                    .layout = Layout::parse(layouts[number++ % 4]),
                    .schedule = schedule};
      const auto refused = [&] {
        return documented_refusal(schedule, planning_problem(problem, run.topology, run.layout)).has_value();
      };
      if (refused()) run.layout = Layout();
      if (refused()) continue;
      expect_exact<float>(problem, run,
                          fmt::format("{} ranks, {}, {}", ranks, schedule, run.layout.to_string()));
    }
  }
}

/// The selection alone.
inline HostSelection selected(const AttentionProblem& problem, SparseRun run, DType type = DType::f32) {
  run.selects_alone = true;
  return type == DType::bf16 ? run_sparse<bfloat16>(problem, run).selection
                             : run_sparse<float>(problem, run).selection;
}

/// EXPECTs that neither layout nor schedule nor number of ranks changes the selection.
inline void expect_one_selection(const AttentionProblem& problem, const std::string& options, DType type,
                                 SparseRun::Score* score = nullptr) {
  SparseRun run{.options = options, .score = score};
  const HostSelection one = selected(problem, run, type);
  for (const auto& [ranks, schedule, layout] : {std::tuple{2, "burst", "block-striped:64"},
                                                {3, "ring", "zigzag"},
                                                {4, "ulysses", "contiguous"},
                                                {7, "all-gather", "striped"}}) {
    if (schedule == std::string("ulysses") && type == DType::bf16) continue;
    run.topology = Topology::uniform(ranks, ranks);
    run.layout = Layout::parse(layout);
    run.schedule = schedule;
    EXPECT_EQ(selected(problem, run, type), one)
        << options << ", " << ranks << " ranks, " << schedule << ", " << layout;
  }
}

}  // namespace annulus::test
