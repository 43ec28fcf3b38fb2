#include <annulus/attention/sparsity/attention.hpp>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include <annulus/base/error.hpp>

#include "attention/comm/agreement.hpp"
#include "attention/executor/call_masks.hpp"
#include "attention/kernels/mask_on.hpp"
#include "attention/kernels/pairs.hpp"
#include "attention/sparsity/head_columns.hpp"
#include "attention/sparsity/pair_counts.hpp"
#include "attention/sparsity/pattern.hpp"
#include "attention/sparsity/patterns/table.hpp"
#include "attention/sparsity/query_blocks/of_queries.hpp"
#include "attention/sparsity/query_blocks/query_blocks.hpp"
#include "attention/sparsity/selection_memory.hpp"
#include "attention/sparsity/take_rows.hpp"
#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/instantiate.hpp"

namespace annulus::sparsity {

namespace {

void require_causal(const Mask& mask) {
  const MaskRule rule = mask.rule();
  std::int64_t longest = rule.documents == 0 ? rule.tokens : 0;
  for (std::int64_t d = 0; d < rule.documents; ++d)
    longest = std::max(longest, rule.document_starts[d + 1] - rule.document_starts[d]);
  require(
      rule.right == 0 && rule.left >= longest - 1 && rule.dilation == 1 && rule.block_row_starts == nullptr,
      "dynamic sparse attention selects from the masks 'causal' and 'documents', not from '{}': "
      "use one of them",
      mask.outline());
}

void check_problem(const plan::Problem& problem) {
  require_causal(problem.mask);
  require(problem.columns(plan::Tensor::v) == problem.head_dim,
          "dynamic sparse attention takes rows of Q, K and V of one width, not {}: use dense attention",
          problem.text_of_head_dims());
  require(problem.layout.runs().empty(),
          "dynamic sparse attention counts the blocks of stripes, "
          "which layout {} has none of: use block-striped:64",
          problem.layout.to_string());
}

std::vector<PositionMap> rows_of_ranks(const plan::Problem& problem) {
  std::vector<PositionMap> rows;
  for (int rank = 0; rank < problem.ranks(); ++rank) rows.push_back(problem.owned(rank));
  return rows;
}

}  // namespace

template <class Exec, class T>
class SparseAttention<Exec, T>::Impl {
 public:
  Impl(comm::Communicator& communicator, Dense& dense, const plan::Problem& problem,
       const PatternOptions& options, const attention::KernelOptions& kernel, bool keep_columns)
      : communicator_(communicator),
        dense_(dense),
        tokens_(problem.mask.tokens()),
        heads_(problem.heads),
        kv_heads_(problem.kv_heads),
        of_ranks_(rows_of_ranks(problem)),
        rows_(of_ranks_[static_cast<std::size_t>(communicator.rank())]),
        options_(options),
        kernel_(kernel),
        keep_columns_(keep_columns),
        pattern_(
            std::visit([](const auto& of) { return of.template make<Exec, T>(); }, options.pattern().of)),
        counts_(std::max(dense.steps(plan::Pass::forward), dense.steps(plan::Pass::backward))) {
    std::string error;
    try {
      check_problem(problem);
      options.check(tokens_, "sparsity", problem.mask.rule().document_starts != nullptr);
    } catch (const Error& caught) {
      error = caught.what();
    }
    comm::throw_together(communicator, error);
    comm::Facts facts;
    facts.add("sparsity", options.to_string(), "give every rank the same selection");
    facts.add("keeping columns", keep_columns ? "yes" : "no", "give every rank the same configuration");
    comm::require_agreement(communicator, facts);
    const Exec exec;
    set_masks(exec, std::span(&problem.mask, 1));
    exec.fence("annulus::sparsity::SparseAttention: the documents are there");  // for all instances
  }

  void set_masks(const Exec& exec, std::span<const Mask> masks) {
    bool packed = false;
    std::vector<std::vector<std::int64_t>> sets;
    for (const Mask& mask : masks) {
      require_causal(mask);
      require(mask.tokens() == tokens_,
              "dynamic sparse attention over {} tokens was given a mask of {}: give one of as many", tokens_,
              mask.tokens());
      packed = packed || mask.rule().document_starts != nullptr;
      const auto starts = mask.document_starts();
      sets.emplace_back(starts.begin(), starts.end());
      if (sets.back().empty()) sets.back() = {0, tokens_};
    }
    rules_.clear();
    documents_ = packed ? std::make_shared<const Documents<Exec>>(exec, tokens_, std::move(sets)) : nullptr;
    for (std::size_t i = 0; i < (packed ? masks.size() : 1); ++i)
      rules_.push_back(std::make_unique<attention::MaskOn<Exec>>(exec, masks[i]));
  }

  std::shared_ptr<const Selection<Exec>> select(const Exec& exec, const Array4<const T, Exec>& q,
                                                const Array4<const T, Exec>& k, float scale) {
    Selection<Exec> made = pattern_->select(exec, communicator_,
                                            {.q = q,
                                             .k = k,
                                             .positions = rows_,
                                             .tokens = tokens_,
                                             .scale = scale,
                                             .of_ranks = of_ranks_,
                                             .documents = documents_});
    if (keep_columns_) made.kept = std::make_shared<KeptColumns<Exec>>();
    return std::make_shared<const Selection<Exec>>(std::move(made));
  }

  std::shared_ptr<const Selection<Exec>> select_by_scores(const Exec& exec,
                                                          const Array4<const float, Exec>& scores) {
    const Region region("annulus::sparsity::select");
    const std::optional<TopBlocks> of = top_blocks(options_, tokens_);
    require(
        of.has_value(),
        "sparsity = '{}' does not choose blocks for each query, so it takes no scores from outside: use moba "
        "or infllm-v2",
        options_.to_string());
    const int lists = selection_form(options_, tokens_).of_query_heads ? heads_ : kv_heads_;
    require(scores.extent_int(1) == lists && scores.extent_int(2) == rows_.count &&
                scores.extent_int(3) == of->blocks(),
            "sparsity = '{}' was given scores of {} lists, {} rows and {} blocks on rank {}: "
            "give them of {} lists, {} rows and {} blocks",
            options_.to_string(), scores.extent(1), scores.extent(2), scores.extent(3), communicator_.rank(),
            lists, rows_.count, of->blocks());
    Selection<Exec> made = selection_of_queries<Exec>(exec,
                                                      {.tokens = tokens_,
                                                       .documents = documents_,
                                                       .batch = scores.extent_int(0),
                                                       .heads = heads_,
                                                       .lists = lists,
                                                       .block = of->block,
                                                       .pattern_rows = PatternRows::of_query},
                                                      *of);
    choose_blocks_by_scores<Exec>(exec, scores, rows_, *of, *made.blocks, made.spans());
    share_bits(exec, communicator_, made);
    return std::make_shared<const Selection<Exec>>(std::move(made));
  }

  void forward(const Exec& exec, const typename Dense::Forward& arrays, const Selection<Exec>& selection) {
    const Region region("annulus::sparsity::SparseAttention::forward");
    if (selection.kept != nullptr) selection.kept->keys = {};  // of another pass
    attend(exec, arrays, selection, tokens_, &Dense::forward);
  }

  void recompute(const Exec& exec, const typename Dense::Forward& arrays, const Selection<Exec>& selection,
                 std::int64_t end) {
    const Region region("annulus::sparsity::SparseAttention::recompute");
    // It would keep the columns that some queries see, of all.
    require(
        selection.kept == nullptr || selection.kept->keys.view().size() > 0 || selection.most_columns() == 0,
        "sparse attention keeps columns, and recomputes before their forward pass: call forward first");
    attend(exec, arrays, selection, end, &Dense::recompute);
  }

  void backward(const Exec& exec, const typename Dense::Backward& arrays, const Selection<Exec>& selection) {
    const Region region("annulus::sparsity::SparseAttention::backward");
    const auto [lists, counts, with_lists] = begin(exec, arrays, selection, plan::Pass::backward, tokens_);
    const auto pass = [&](const typename Dense::Backward& of_pass) { dense_.backward(exec, of_pass); };
    if (selection.most_columns() == 0) return pass(with_lists);
    const Columns columns = run(exec, with_lists, selection, lists, plan::Pass::backward, pass);
    const auto operands = operands_of(arrays.q, rows_, columns, lists, arrays.scale);
    // dK and dV of the columns, one array after the other, so that one sum brings both home.
    const auto [batch, selections, most, width] = columns.extents();
    const auto gradients = Owned<Array1<float, Exec>>::uninitialized(exec, MemoryCategory::communication,
                                                                     "annulus::sparsity::column_gradients",
                                                                     2 * batch * selections * most * width);
    const Array4<float, Exec> dk(gradients.view().data(), batch, selections, most, width),
        dv(dk.data() + dk.size(), batch, selections, most, width);
    for_each_rule(arrays.q.extent_int(0), [&](const Sequences& some) {
      const attention::Operands<T, Exec> in = some.of(operands);
      count(exec, in, counts.columns);
      attention::KernelOptions options = kernel_;
      options.fresh_dkv = true;
      const Array4<float, Exec> to_dk = some.of(dk), to_dv = some.of(dv);
      const auto run = [&](const attention::Operands<T, Exec>& of, const Array4<float, Exec>& head_dk,
                           const Array4<float, Exec>& head_dv) {
        attention::backward<Exec, T>(exec, of,
                                     {.d_out = some.of(arrays.d_out),
                                      .lse = some.of(arrays.lse),
                                      .d = some.of(arrays.d),
                                      .dq = some.of(arrays.dq),
                                      .dk = head_dk,
                                      .dv = head_dv},
                                     options);
      };
      const std::int64_t group = lists.heads_of_list;
      if (group == 1) return run(in, to_dk, to_dv);
      const HeadColumns<Exec, T> of_heads(exec, in);
      const auto parts = Owned<Array1<float, Exec>>::uninitialized(
          exec, MemoryCategory::workspace, "annulus::sparsity::head_gradients",
          2 * to_dk.size() * static_cast<std::size_t>(group));
      const std::size_t heads = selections * static_cast<std::size_t>(group);
      const Array4<float, Exec> head_dk(parts.view().data(), to_dk.extent(0), heads, most, width),
          head_dv(head_dk.data() + head_dk.size(), to_dk.extent(0), heads, most, width);
      run(of_heads.operands(), head_dk, head_dv);
      const auto each = static_cast<std::int64_t>(most * width);
      add_heads<Exec>(exec, head_dk.data(), each, group, Array1<float, Exec>(to_dk.data(), to_dk.size()));
      add_heads<Exec>(exec, head_dv.data(), each, group, Array1<float, Exec>(to_dv.data(), to_dv.size()));
    });
    communicator_.all_reduce(Queue(exec), *gradients);
    const WantedRows wanted{.listed = lists.columns.view().data(), .count = selection.most_columns()};
    add_rows<Exec>(exec, dk, rows_, wanted, arrays.dk);
    add_rows<Exec>(exec, dv, rows_, wanted, arrays.dv);
  }

  SelectedPairs check_pairs(const Exec& exec) {
    const SelectedPairs pairs = counts_.take(exec, communicator_);
    const auto compare = [](const char* pass, const SelectedPairs::OfPass& of) {
      require(
          of.computed == of.selected,
          "dynamic sparse attention: the {} computed {} pairs, but {} were selected: this is a defect of the "
          "program, please report it with schedule, layout and number of ranks",
          pass, of.computed, of.selected);
    };
    compare("forward", pairs.forward);
    compare("backward", pairs.backward);
    return pairs;
  }

 private:
  /// Sequences that have one mask.
  struct Sequences {
    const MaskRule& rule;
    std::int64_t first, count;

    template <class View>
    View of(const View& all) const {
      const Kokkos::pair<std::int64_t, std::int64_t> some(first, first + count);
      if constexpr (View::rank() == 4) {
        return Kokkos::subview(all, some, Kokkos::ALL, Kokkos::ALL, Kokkos::ALL);
      } else {
        return Kokkos::subview(all, some, Kokkos::ALL, Kokkos::ALL);
      }
    }
    /// The operands of these sequences, where `all` has block lists and listed keys of all sequences.
    attention::Operands<T, Exec> of(const attention::Operands<T, Exec>& all) const {
      const auto heads = static_cast<std::int64_t>(all.q.extent(1)),
                 lists = static_cast<std::int64_t>(all.k.extent(1)),
                 keys = static_cast<std::int64_t>(all.k.extent(2));
      attention::Operands<T, Exec> some = all;
      some.q = of(all.q);
      some.k = of(all.k);
      some.v = of(all.v);
      some.kv_listed += first * lists * keys;
      some.mask = all.mask.from_list(first * heads / all.mask.heads_of_list);
      some.mask.block_lists = count * heads / all.mask.heads_of_list;
      some.mask.left = rule.left;
      some.mask.document_starts = rule.document_starts;
      some.mask.documents = rule.documents;
      return some;
    }
  };
  /// Calls f(sequences) for those of each mask.
  template <class F>
  void for_each_rule(int batch, const F& f) const {
    const auto masks = static_cast<std::int64_t>(rules_.size());
    for (std::int64_t i = 0; i < masks; ++i)
      f(Sequences{rules_[static_cast<std::size_t>(i)]->rule(), i * (batch / masks), batch / masks});
  }

  /// What all passes begin with.
  template <class Arrays>
  struct Begun {
    Lists<Exec> lists;
    typename PairCounts<Exec>::Counters counts;
    Arrays arrays;  // with the lists
  };
  /// `end`: of the queries that take part.
  template <class Arrays>
  Begun<Arrays> begin(const Exec& exec, const Arrays& arrays, const Selection<Exec>& selection,
                      plan::Pass pass, std::int64_t end) {
    check(selection, arrays.q.extent_int(0), arrays.q.extent_int(1));
    require(selection.documents == documents_,
            "sparse attention was given a selection of other documents: select anew behind set_masks");
    // Patterns select by plain scores, and columns are merged behind the plan's last merge.
    require(
        arrays.soft_cap == 0.0f && arrays.sinks.data() == nullptr,
        "dynamic sparse attention has neither a soft cap of scores nor sinks: use dense attention in layers "
        "with {}",
        arrays.soft_cap != 0.0f ? "a soft cap" : "sinks");
    Begun<Arrays> begun{expand(exec, selection), counts_.add(exec, pass), arrays};
    begun.arrays.blocks = begun.lists.blocks();
    begun.arrays.blocks.pairs = begun.counts.steps;
    count_selected<Exec>(exec, selection, end, begun.counts.selected);
    return begun;
  }

  /// The forward pass, or what computes it again, of the queries before `end`: the lists, and then the
  /// columns, which are merged into out and lse and finish them.
  void attend(const Exec& exec, const typename Dense::Forward& arrays, const Selection<Exec>& selection,
              std::int64_t end, void (Dense::*of_lists)(const Exec&, const typename Dense::Forward&)) {
    auto [lists, counts, with_lists] = begin(exec, arrays, selection, plan::Pass::forward, end);
    const auto pass = [&](const typename Dense::Forward& of_pass) { (dense_.*of_lists)(exec, of_pass); };
    if (selection.most_columns() == 0) return pass(with_lists);
    with_lists.finished = {};
    const Columns columns = run(exec, with_lists, selection, lists, plan::Pass::forward, pass);
    const std::int64_t rows = rows_.rows_below(end);
    const Kokkos::pair<std::int64_t, std::int64_t> first(0, rows);
    const auto of_rows = [&](const auto& array) {
      return Kokkos::subview(array, Kokkos::ALL, Kokkos::ALL, first, Kokkos::ALL);
    };
    const auto operands =
        operands_of(of_rows(arrays.q), rows_.slice({0, rows}), columns, lists, arrays.scale);
    const Strided4<float, Exec> out = of_rows(arrays.out);
    const Strided3<float, Exec> lse = Kokkos::subview(arrays.lse, Kokkos::ALL, Kokkos::ALL, first);
    for_each_rule(arrays.q.extent_int(0), [&](const Sequences& some) {
      const attention::Operands<T, Exec> in = some.of(operands);
      count(exec, in, counts.columns);
      if (rows == 0) return;
      attention::ForwardArrays<T, Exec> results{.out = some.of(out), .lse = some.of(lse)};
      if (arrays.finished.data() != nullptr)
        results.finished = some.of(Strided4<T, Exec>(of_rows(arrays.finished)));
      attention::forward<Exec, T>(exec, in, results, kernel_);
    });
  }

  /// K and V of the columns, of all ranks, in memory of their own or in that of a selection.
  struct Columns {
    Owned<Array1<std::byte, Exec>> own;
    Array1<T, Exec> both;
    Array4<T, Exec> k, v;  // (batch, lists, most columns, head_dim)

    /// Makes columns for rows like those of `keys`, (batch, kv_heads, rows, head_dim). What is kept keeps its
    /// values.
    Columns(const Exec& exec, const Selection<Exec>& selection, const Array4<const T, Exec>& keys) {
      const std::size_t batch = keys.extent(0), width = keys.extent(3);
      const auto most = static_cast<std::size_t>(selection.most_columns());
      const auto selections = static_cast<std::size_t>(selection.lists);
      const std::size_t elements = 2 * batch * selections * most * width;
      Owned<Array1<std::byte, Exec>>& memory = selection.kept != nullptr ? selection.kept->keys : own;
      if (memory.view().size() == 0)
        memory = Owned<Array1<std::byte, Exec>>::uninitialized(
            exec, selection.kept != nullptr ? MemoryCategory::activations : MemoryCategory::communication,
            "annulus::sparsity::column_keys", elements * sizeof(T));
      both = Array1<T, Exec>(reinterpret_cast<T*>(memory.view().data()), elements);
      k = Array4<T, Exec>(both.data(), batch, selections, most, width);
      v = Array4<T, Exec>(k.data() + k.size(), batch, selections, most, width);
    }
    std::array<std::size_t, 4> extents() const {
      return {k.extent(0), k.extent(1), k.extent(2), k.extent(3)};
    }
  };

  /// Runs the pass `over(arrays)`, and collects the columns unless they were kept: from the keys that pass by
  /// in it, where all keys of this rank's queries do, or else from all ranks, behind it.
  template <class Arrays, class Over>
  Columns run(const Exec& exec, Arrays arrays, const Selection<Exec>& selection, const Lists<Exec>& lists,
              plan::Pass pass, const Over& over) {
    const bool kept = selection.kept != nullptr && selection.kept->keys.view().size() > 0;
    const WantedRows wanted{.listed = lists.columns.view().data(), .count = selection.most_columns()};
    if (kept || !dense_.queries_stay(pass)) {
      over(arrays);
      Columns columns(exec, selection, arrays.k);
      if (kept) return columns;
      take_rows<Exec, T>(exec, arrays.k, rows_, wanted, columns.k);
      take_rows<Exec, T>(exec, arrays.v, rows_, wanted, columns.v);
      communicator_.all_reduce(Queue(exec), columns.both);
      return columns;
    }
    Columns columns(exec, selection, arrays.k);
    // Kernels read, and mask, also what no query of this rank sees.
    Kokkos::deep_copy(exec, columns.both, T(0.0f));
    const std::int64_t lists_of_head = selection.lists / arrays.k.extent_int(1);
    arrays.on_keys = [&](const executor::PassingKeys<Exec, T>& passing) {
      pick_rows<Exec, T>(exec, passing, lists_of_head, wanted, columns.k, columns.v);
    };
    over(arrays);
    return columns;
  }

  /// Queries of this rank against the columns, but for the pairs that listed blocks hold.
  attention::Operands<T, Exec> operands_of(const Strided4<const T, Exec>& q, const PositionMap& positions,
                                           const Columns& columns, const Lists<Exec>& lists,
                                           float scale) const {
    MaskRule rule = executor::with_lists(rules_.front()->rule(), lists.blocks(),
                                         static_cast<std::int64_t>(q.extent(0) * q.extent(1)));
    rule.blocks_excluded = true;
    return {q, columns.k, columns.v, positions, {}, rule, scale, 0.0f, lists.columns.view().data()};
  }

  void count(const Exec& exec, const attention::Operands<T, Exec>& in, std::int64_t* to) const {
    const auto most = static_cast<std::int64_t>(in.k.extent(2));
    attention::count_pairs(exec,
                           {.mask = in.mask,
                            .q_positions = in.q_positions,
                            .keys = KeyPositions::of_list(in.kv_listed, most),
                            .heads = static_cast<std::int64_t>(in.q.extent(0) * in.q.extent(1)),
                            .key_heads = static_cast<std::int64_t>(in.k.extent(0) * in.k.extent(1))},
                           to);
  }

  void check(const Selection<Exec>& selection, int batch, int heads) const {
    require(
        selection.tokens == tokens_ && selection.batch == batch && selection.heads == heads,
        "sparse attention of {} sequences with {} heads over {} tokens was given a selection for {}, {} and "
        "{}: select for these arrays",
        batch, heads, tokens_, selection.batch, selection.heads, selection.tokens);
  }

  comm::Communicator& communicator_;
  Dense& dense_;
  std::int64_t tokens_;
  int heads_, kv_heads_;
  std::vector<PositionMap> of_ranks_;  // rows
  PositionMap rows_;                   // of this rank
  // Of all sequences, or of each: where documents differ.
  std::vector<std::unique_ptr<attention::MaskOn<Exec>>> rules_;
  std::shared_ptr<const Documents<Exec>> documents_;  // null: each sequence is one
  PatternOptions options_;
  attention::KernelOptions kernel_;
  bool keep_columns_;
  std::unique_ptr<Pattern<Exec, T>> pattern_;
  PairCounts<Exec> counts_;
};

template <class Exec, class T>
SparseAttention<Exec, T>::SparseAttention(comm::Communicator& communicator, Dense& dense,
                                          const plan::Problem& problem, const PatternOptions& options,
                                          const attention::KernelOptions& kernel, bool keep_columns)
    : impl_(std::make_unique<Impl>(communicator, dense, problem, options, kernel, keep_columns)) {}
template <class Exec, class T>
SparseAttention<Exec, T>::~SparseAttention() = default;
template <class Exec, class T>
SparseAttention<Exec, T>::SparseAttention(SparseAttention&&) noexcept = default;
template <class Exec, class T>
SparseAttention<Exec, T>& SparseAttention<Exec, T>::operator=(SparseAttention&&) noexcept = default;

template <class Exec, class T>
void SparseAttention<Exec, T>::set_masks(const Exec& exec, std::span<const Mask> masks) {
  impl_->set_masks(exec, masks);
}

template <class Exec, class T>
std::shared_ptr<const Selection<Exec>> SparseAttention<Exec, T>::select(const Exec& exec,
                                                                        const Array4<const T, Exec>& q,
                                                                        const Array4<const T, Exec>& k,
                                                                        float scale) {
  return impl_->select(exec, q, k, scale);
}
template <class Exec, class T>
std::shared_ptr<const Selection<Exec>> SparseAttention<Exec, T>::select_by_scores(
    const Exec& exec, const Array4<const float, Exec>& scores) {
  return impl_->select_by_scores(exec, scores);
}
template <class Exec, class T>
void SparseAttention<Exec, T>::forward(const Exec& exec, const typename Dense::Forward& arrays,
                                       const Selection<Exec>& selection) {
  impl_->forward(exec, arrays, selection);
}
template <class Exec, class T>
void SparseAttention<Exec, T>::backward(const Exec& exec, const typename Dense::Backward& arrays,
                                        const Selection<Exec>& selection) {
  impl_->backward(exec, arrays, selection);
}
template <class Exec, class T>
void SparseAttention<Exec, T>::recompute(const Exec& exec, const typename Dense::Forward& arrays,
                                         const Selection<Exec>& selection, std::int64_t end) {
  impl_->recompute(exec, arrays, selection, end);
}
template <class Exec, class T>
SelectedPairs SparseAttention<Exec, T>::check_pairs(const Exec& exec) {
  return impl_->check_pairs(exec);
}

#define ANNULUS_INSTANTIATE(EXEC, T) template class SparseAttention<EXEC, T>;
ANNULUS_FOR_ATTENTION(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::sparsity
