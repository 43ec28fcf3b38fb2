#pragma once

#include <gtest/gtest.h>

#include <annulus/attention/local.hpp>
#include <annulus/comm/loopback.hpp>
#include <annulus/distributed/attention.hpp>
#include <annulus/plan/schedules.hpp>
#include <annulus/sparsity/attention.hpp>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "support/attention_problem.hpp"
#include "support/attention_rows.hpp"
#include "support/exec.hpp"

/// Sparse attention over ranks that are threads, and the same pairs in double precision.
namespace annulus::test {

/// A selection in the host's memory.
struct HostSelection {
  std::int64_t tokens = 0, batch = 0, heads = 0, lists = 0, words = 0, most = 0, listed = 0;
  std::vector<std::uint32_t> blocks;  // (batch · lists, words)
  std::vector<std::int32_t> columns;  // (batch · lists, most)

  static HostSelection of(const sparsity::Selection<TestExec>& selection) {
    const auto blocks = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), selection.blocks.view());
    const auto columns = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), selection.columns.view());
    EXPECT_TRUE(selection.by_distance);
    return {selection.tokens,
            selection.batch,
            selection.heads,
            selection.lists,
            static_cast<std::int64_t>(blocks.extent(2)),
            selection.most_columns(),
            selection.listed,
            {blocks.data(), blocks.data() + blocks.size()},
            {columns.data(), columns.data() + columns.size()}};
  }

  bool slash(std::int64_t list, std::int64_t distance) const {
    return (blocks[static_cast<std::size_t>(list * words + distance / 32)] >> (distance % 32) & 1u) != 0;
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
    if (k > q) return false;
    if (slash(list, q / sparsity::block_tokens - k / sparsity::block_tokens)) return true;
    for (std::int64_t j = 0; j < most; ++j)
      if (columns[static_cast<std::size_t>(list * most + j)] == k) return true;
    return false;
  }
  friend bool operator==(const HostSelection&, const HostSelection&) = default;
};

/// Exactly the pairs of a selection as a mask: block lists of blocks of one token.
class ExactPairs {
 public:
  explicit ExactPairs(const HostSelection& selection) {
    const std::int64_t heads = selection.batch * selection.heads, group = selection.heads / selection.lists;
    rule_.tokens = selection.tokens;
    rule_.block_size = 1;
    rule_.block_lists = heads;
    rule_.heads_of_list = 1;
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t q = 0; q < selection.tokens; ++q) {
        starts_.push_back(std::ssize(columns_));
        for (std::int64_t k = 0; k <= q; ++k)
          if (selection.allows(head / group, q, k)) columns_.push_back(k);
      }
      starts_.push_back(std::ssize(columns_));
    }
    rule_.block_row_starts = starts_.data();
    rule_.block_columns = columns_.data();
  }
  ExactPairs(const ExactPairs&) = delete;

  const MaskRule& rule() const { return rule_; }
  std::int64_t pairs() const { return std::ssize(columns_); }

 private:
  MaskRule rule_;
  std::vector<std::int64_t> starts_, columns_;
};

/// How sparse attention is spread.
struct SparseRun {
  std::string options = "vertical-slash";
  Topology topology{};
  Layout layout{};
  std::string schedule = "ring";
  attention::Kernel kernel = attention::Kernel::automatic;
  bool one_plan_a_sequence = false;
};

struct SparseResult {
  AttentionResult result;
  HostSelection selection;
  sparsity::Pairs pairs;
  double recall = 0;  ///< over all rows, the mean of the heads of the first sequence
};

/// `finished` has the bits of forward's out, which the arrays hold, rounded to T.
template <class T>
void expect_finished(const TestExec& exec, sparsity::Attention<TestExec, T>& sparse,
                     typename distributed::Attention<TestExec, T>::Forward arrays,
                     const sparsity::Selection<TestExec>& selection) {
  const auto out = Kokkos::create_mirror(Kokkos::HostSpace(), arrays.out);
  Kokkos::deep_copy(out, arrays.out);
  const Array4<T, TestExec> finished("annulus::test::finished", arrays.out.layout());
  Kokkos::deep_copy(finished, T(std::numeric_limits<float>::quiet_NaN()));
  arrays.finished = finished;
  sparse.forward(exec, arrays, selection);
  exec.fence("annulus::test: finished");
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), finished);
  bool same = true;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const T expected(out.data()[i]);
    same = same && std::memcmp(host.data() + i, &expected, sizeof expected) == 0;
  }
  EXPECT_TRUE(same) << "finished is not out";
}

/// Selects and runs both passes; every rank must have the same selection, and both passes must give the same
/// bits twice.
template <class T>
SparseResult run_sparse(const AttentionProblem& problem, const SparseRun& run) {
  SparseResult made;
  made.result = problem.empty_result();
  std::optional<HostSelection> first;
  std::mutex mutex;
  comm::run_loopback(run.topology, [&](comm::Communicator& communicator) {
    const TestExec exec = rank_instance();
    plan::Problem of{.topology = run.topology,
                     .layout = run.layout,
                     .mask = problem.mask,
                     .heads = static_cast<int>(problem.shape.heads),
                     .kv_heads = static_cast<int>(problem.shape.kv_heads),
                     .head_dim = problem.shape.head_dim,
                     .batch = static_cast<int>(problem.shape.batch),
                     .activation = dtype_of<T>};
    std::vector<distributed::Plans> plans;
    plan::Problem of_plan = of;
    if (run.one_plan_a_sequence) of_plan.batch = 1;
    do {
      plans.push_back({plan::make_plan(run.schedule, of_plan, plan::Pass::forward),
                       plan::make_plan(run.schedule, of_plan, plan::Pass::backward)});
    } while (run.one_plan_a_sequence && std::ssize(plans) < of.batch);
    of.grid = plans.front().forward.problem.grid;
    distributed::Settings settings;
    settings.kernel = run.kernel;
    distributed::Attention<TestExec, T> dense(exec, communicator, plans, settings);
    sparsity::Attention<TestExec, T> sparse(communicator, dense, of, sparsity::Options::parse(run.options),
                                            run.kernel);
    const PositionMap positions = of.owned(communicator.rank());
    const auto rows = [&](const Array& array) { return rows_on<T>(exec, array, positions, Storage::dense); };
    const auto q = rows(problem.q), k = rows(problem.k), v = rows(problem.v), d_out = rows(problem.d_out);
    const auto like = [&](const Array& array) {
      return filled_rows(exec, array, positions, std::numeric_limits<float>::quiet_NaN(), Storage::dense);
    };
    const auto out = like(problem.q), dq = like(problem.q), dk = like(problem.k), dv = like(problem.k);
    const auto statistic = [&] {
      return Array3<float, TestExec>("annulus::test::statistic", problem.shape.batch, problem.shape.heads,
                                     positions.count);
    };
    const auto lse = statistic(), d = statistic();
    const auto scale = static_cast<float>(problem.scale);
    const auto selection = sparse.select(exec, q.memory(), k.memory(), scale);
    const typename distributed::Attention<TestExec, T>::Forward forward{
        .q = q.memory(), .k = k.memory(), .v = v.memory(), .scale = scale, .out = out.memory(), .lse = lse};
    AttentionResult own = problem.empty_result(), again = own;
    for (AttentionResult* to : {&own, &again}) {
      sparse.forward(exec, forward, selection);
      attention::row_dot<TestExec, T>(exec, out.read(), d_out.read(), d);
      sparse.backward(exec,
                      {.q = q.memory(),
                       .k = k.memory(),
                       .v = v.memory(),
                       .scale = scale,
                       .lse = lse,
                       .d = d,
                       .d_out = d_out.memory(),
                       .dq = dq.memory(),
                       .dk = dk.memory(),
                       .dv = dv.memory()},
                      selection);
      exec.fence("annulus::test: both passes are done");
      out.store(to->out, positions);
      dq.store(to->dq, positions);
      dk.store(to->dk, positions);
      dv.store(to->dv, positions);
      const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), lse);
      for (std::int64_t b = 0; b < to->lse.batch; ++b)
        for (std::int64_t h = 0; h < to->lse.heads; ++h)
          for (std::int64_t i = 0; i < positions.count; ++i) *to->lse.row(b, h, positions(i)) = host(b, h, i);
    }
    const sparsity::Pairs pairs = sparse.check_pairs(exec);
    expect_finished<T>(exec, sparse, forward, selection);
    EXPECT_EQ(sparse.take_recall(exec), std::nullopt) << "before any audit";
    for (int head = 0; head < of.heads; ++head) sparse.audit(exec, forward, head);
    const double recall = sparse.take_recall(exec).value();
    const HostSelection here = HostSelection::of(selection);
    const std::lock_guard lock(mutex);
    if (!first) first = here;
    EXPECT_EQ(here, *first) << "rank " << communicator.rank() << " has another selection";
    made.pairs = pairs;
    made.recall = recall;
    for (const auto array : {&AttentionResult::out, &AttentionResult::lse, &AttentionResult::dq,
                             &AttentionResult::dk, &AttentionResult::dv}) {
      const Array& one = own.*array;
      for (std::int64_t b = 0; b < one.batch; ++b)
        for (std::int64_t h = 0; h < one.heads; ++h)
          for (std::int64_t i = 0; i < positions.count; ++i)
            for (std::int64_t c = 0; c < one.width; ++c) {
              const double value = one.row(b, h, positions(i))[c];
              EXPECT_EQ(value, (again.*array).row(b, h, positions(i))[c]) << "other bits in a second run";
              (made.result.*array).row(b, h, positions(i))[c] = value;
            }
    }
  });
  made.selection = *first;
  return made;
}

/// The answer in double precision over exactly the pairs of the selection.
inline AttentionResult exact_result(const AttentionProblem& problem, const ExactPairs& pairs) {
  auto forward = attention::reference::forward(problem.q, problem.k, problem.v, pairs.rule(), problem.scale);
  auto backward = attention::reference::backward({.q = problem.q,
                                                  .k = problem.k,
                                                  .v = problem.v,
                                                  .result = forward,
                                                  .d_out = problem.d_out,
                                                  .mask = pairs.rule(),
                                                  .scale = problem.scale});
  const double d_score = problem.scale * root_mean_square(problem.d_out) * root_mean_square(problem.v) *
                         std::sqrt(problem.shape.head_dim);
  return {std::move(forward.out),
          std::move(forward.lse),
          std::move(backward.dq),
          std::move(backward.dk),
          std::move(backward.dv),
          d_score * root_mean_square(problem.k),
          d_score * root_mean_square(problem.q)};
}

}  // namespace annulus::test
