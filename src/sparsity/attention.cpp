#include <annulus/sparsity/attention.hpp>

#include <fmt/format.h>

#include <Kokkos_Core.hpp>
#include <array>
#include <utility>

#include <annulus/attention/pairs.hpp>
#include <annulus/base/error.hpp>
#include <annulus/comm/agreement.hpp>
#include <annulus/core/region.hpp>

#include "sparsity/instantiate.hpp"
#include "sparsity/take_rows.hpp"

namespace annulus::sparsity {

namespace {

void require_causal(const plan::Problem& problem) {
  const MaskRule rule = problem.mask.rule();
  const bool causal = rule.right == 0 && rule.left >= rule.tokens - 1 && rule.dilation == 1 &&
                      rule.document_starts == nullptr && rule.block_row_starts == nullptr;
  require(causal, "dynamic sparse attention selects from the mask 'causal', not from '{}': {}",
          problem.mask.outline(),
          rule.document_starts != nullptr
              ? "packed documents would need an observation window each; train on one document a sequence"
              : "use causal");
}

}  // namespace

template <class Exec, class T>
class Attention<Exec, T>::Impl {
 public:
  Impl(comm::Communicator& communicator, Dense& dense, const plan::Problem& problem, const Options& options,
       const attention::KernelOptions& kernel)
      : communicator_(communicator),
        dense_(dense),
        tokens_(problem.mask.tokens()),
        rows_(problem.owned(communicator.rank())),
        rule_(problem.mask.rule()),
        options_(options),
        kernel_(kernel),
        pattern_(make_pattern<Exec, T>(options)) {
    std::string error;
    try {
      require_causal(problem);
      options.check(tokens_);
    } catch (const Error& caught) {
      error = caught.what();
    }
    comm::throw_together(communicator, error);
    comm::Facts facts;
    facts.add("sparsity", options.to_string(), "give every rank the same selection");
    comm::require_agreement(communicator, facts);
  }

  Selection<Exec> select(const Exec& exec, const Array4<const T, Exec>& q, const Array4<const T, Exec>& k,
                         float scale) {
    return pattern_->select(exec, communicator_,
                            {.q = q, .k = k, .positions = rows_, .tokens = tokens_, .scale = scale});
  }

  void forward(const Exec& exec, const typename Dense::Forward& arrays, const Selection<Exec>& selection) {
    const Region region("annulus::sparsity::Attention::forward");
    check(selection, arrays.q.extent_int(0), arrays.q.extent_int(1));
    const Lists<Exec> lists = expand(exec, selection);
    std::int64_t* const counts = pairs_of(exec);
    typename Dense::Forward with_lists = arrays;
    with_lists.blocks = lists.blocks();
    with_lists.blocks.pairs = counts + computed;
    dense_.forward(exec, with_lists);
    count_selected<Exec>(exec, selection, counts + selected);
    if (selection.most_columns() == 0) return;
    const Columns columns = gather(exec, arrays.k, arrays.v, selection, lists);
    const auto operands = operands_of(arrays.q, columns, lists, arrays.scale);
    count(exec, operands, counts + computed);
    if (rows_.empty()) return;
    attention::forward<Exec, T>(exec, operands, arrays.out, arrays.lse, kernel_);
  }

  void backward(const Exec& exec, const typename Dense::Backward& arrays, const Selection<Exec>& selection) {
    const Region region("annulus::sparsity::Attention::backward");
    check(selection, arrays.q.extent_int(0), arrays.q.extent_int(1));
    const Lists<Exec> lists = expand(exec, selection);
    std::int64_t* const counts = pairs_of(exec);
    typename Dense::Backward with_lists = arrays;
    with_lists.blocks = lists.blocks();
    with_lists.blocks.pairs = counts + computed_back;
    dense_.backward(exec, with_lists);
    count_selected<Exec>(exec, selection, counts + selected_back);
    if (selection.most_columns() == 0) return;
    const Columns columns = gather(exec, arrays.k, arrays.v, selection, lists);
    const auto operands = operands_of(arrays.q, columns, lists, arrays.scale);
    count(exec, operands, counts + computed_back);
    // dK and dV of the columns, one array after the other, so that one sum brings both home.
    const auto [batch, selections, most, width] = columns.extents();
    const auto gradients = Owned<Array1<float, Exec>>::zeroed(exec, MemoryCategory::communication,
                                                              "annulus::sparsity::column_gradients",
                                                              2 * batch * selections * most * width);
    const Array4<float, Exec> dk(gradients.view().data(), batch, selections, most, width),
        dv(dk.data() + dk.size(), batch, selections, most, width);
    if (!rows_.empty()) {
      attention::backward<Exec, T>(
          exec, operands,
          {.d_out = arrays.d_out, .lse = arrays.lse, .d = arrays.d, .dq = arrays.dq, .dk = dk, .dv = dv},
          kernel_);
    }
    communicator_.all_reduce(Queue(exec), *gradients);
    const WantedRows wanted{.listed = lists.columns.view().data(), .count = selection.most_columns()};
    add_rows<Exec>(exec, dk, rows_, wanted, arrays.dk);
    add_rows<Exec>(exec, dv, rows_, wanted, arrays.dv);
  }

  Pairs take_pairs(const Exec& exec) {
    std::array<std::int64_t, count_of_pairs> counts{};
    const Queue queue(exec);
    if (pairs_.allocated()) {
      queue.copy_to_host(counts.data(), pairs_.view().data(), sizeof(counts));
      queue.fence("annulus::sparsity::Attention: pairs counted");
      Kokkos::deep_copy(exec, *pairs_, std::int64_t{0});
    }
    std::array<std::int64_t, 2> of_all = {counts[computed], counts[computed_back]};
    communicator_.all_reduce(Queue(HostExec()), of_all.data(), of_all.size(), DType::i64,
                             comm::ReduceOp::sum);
    return {.selected = counts[selected],
            .computed = of_all[0],
            .selected_back = counts[selected_back],
            .computed_back = of_all[1],
            .own = counts[computed],
            .own_back = counts[computed_back]};
  }

  Pairs check_pairs(const Exec& exec) {
    const Pairs pairs = take_pairs(exec);
    const auto compare = [](const char* pass, std::int64_t computed, std::int64_t selected) {
      require(
          computed == selected,
          "dynamic sparse attention: the {} computed {} pairs, but {} were selected: this is a defect of the "
          "program, please report it with schedule, layout and number of ranks",
          pass, computed, selected);
    };
    compare("forward", pairs.computed, pairs.selected);
    compare("backward", pairs.computed_back, pairs.selected_back);
    return pairs;
  }

 private:
  // Places of pairs_.
  static constexpr int selected = 0, computed = 1, selected_back = 2, computed_back = 3, count_of_pairs = 4;

  /// K and V of the columns, of all ranks.
  struct Columns {
    Owned<Array1<T, Exec>> memory;
    Array4<T, Exec> k, v;  // (batch, lists, most columns, head_dim)
    std::array<std::size_t, 4> extents() const {
      return {k.extent(0), k.extent(1), k.extent(2), k.extent(3)};
    }
  };

  static Columns gather(const Exec& exec, comm::Communicator& communicator, const PositionMap& rows,
                        const Array4<const T, Exec>& k, const Array4<const T, Exec>& v,
                        const Selection<Exec>& selection, const Lists<Exec>& lists) {
    const std::size_t batch = k.extent(0), width = k.extent(3);
    const auto most = static_cast<std::size_t>(selection.most_columns());
    const auto selections = static_cast<std::size_t>(selection.lists);
    Columns columns;
    columns.memory = Owned<Array1<T, Exec>>::uninitialized(exec, MemoryCategory::communication,
                                                           "annulus::sparsity::column_keys",
                                                           2 * batch * selections * most * width);
    columns.k = Array4<T, Exec>(columns.memory.view().data(), batch, selections, most, width);
    columns.v = Array4<T, Exec>(columns.k.data() + columns.k.size(), batch, selections, most, width);
    const WantedRows wanted{.listed = lists.columns.view().data(), .count = selection.most_columns()};
    take_rows<Exec, T>(exec, k, rows, wanted, columns.k);
    take_rows<Exec, T>(exec, v, rows, wanted, columns.v);
    communicator.all_reduce(Queue(exec), *columns.memory);
    return columns;
  }
  Columns gather(const Exec& exec, const Array4<const T, Exec>& k, const Array4<const T, Exec>& v,
                 const Selection<Exec>& selection, const Lists<Exec>& lists) {
    return gather(exec, communicator_, rows_, k, v, selection, lists);
  }

  /// This rank's queries against the columns, but for the pairs that listed blocks hold.
  attention::Operands<T, Exec> operands_of(const Array4<const T, Exec>& q, const Columns& columns,
                                           const Lists<Exec>& lists, float scale) const {
    MaskRule rule = rule_;
    rule.block_size = block_tokens;
    rule.block_row_starts = lists.row_starts.view().data();
    rule.block_columns = lists.block_columns.view().data();
    rule.block_lists = static_cast<std::int64_t>(q.extent(0) * q.extent(1));
    rule.blocks_excluded = true;
    return {q, columns.k, columns.v, rows_, {}, rule, scale, lists.columns.view().data()};
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

  std::int64_t* pairs_of(const Exec& exec) {
    if (!pairs_.allocated()) {
      pairs_ = Owned<Array1<std::int64_t, Exec>>::zeroed(exec, MemoryCategory::workspace,
                                                         "annulus::sparsity::pairs", count_of_pairs);
    }
    return pairs_.view().data();
  }

  comm::Communicator& communicator_;
  Dense& dense_;
  std::int64_t tokens_;
  PositionMap rows_;  // of this rank
  MaskRule rule_;     // causal: it has no arrays
  Options options_;
  attention::KernelOptions kernel_;
  std::unique_ptr<Pattern<Exec, T>> pattern_;
  Owned<Array1<std::int64_t, Exec>> pairs_;
};

template <class Exec, class T>
Attention<Exec, T>::Attention(comm::Communicator& communicator, Dense& dense, const plan::Problem& problem,
                              const Options& options, const attention::KernelOptions& kernel)
    : impl_(std::make_unique<Impl>(communicator, dense, problem, options, kernel)) {}
template <class Exec, class T>
Attention<Exec, T>::~Attention() = default;
template <class Exec, class T>
Attention<Exec, T>::Attention(Attention&&) noexcept = default;
template <class Exec, class T>
Attention<Exec, T>& Attention<Exec, T>::operator=(Attention&&) noexcept = default;

template <class Exec, class T>
Selection<Exec> Attention<Exec, T>::select(const Exec& exec, const Array4<const T, Exec>& q,
                                           const Array4<const T, Exec>& k, float scale) {
  return impl_->select(exec, q, k, scale);
}
template <class Exec, class T>
void Attention<Exec, T>::forward(const Exec& exec, const typename Dense::Forward& arrays,
                                 const Selection<Exec>& selection) {
  impl_->forward(exec, arrays, selection);
}
template <class Exec, class T>
void Attention<Exec, T>::backward(const Exec& exec, const typename Dense::Backward& arrays,
                                  const Selection<Exec>& selection) {
  impl_->backward(exec, arrays, selection);
}
template <class Exec, class T>
Pairs Attention<Exec, T>::take_pairs(const Exec& exec) {
  return impl_->take_pairs(exec);
}
template <class Exec, class T>
Pairs Attention<Exec, T>::check_pairs(const Exec& exec) {
  return impl_->check_pairs(exec);
}

#define ANNULUS_INSTANTIATE(EXEC, T) template class Attention<EXEC, T>;
ANNULUS_SPARSITY_SPACES_AND_TYPES(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::sparsity
