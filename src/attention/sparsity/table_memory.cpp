#include "attention/sparsity/table_memory.hpp"

#include <algorithm>

#include <annulus/base/kokkos/tensor.hpp>

#include "attention/executor/call_masks.hpp"
#include "attention/executor/table_memory.hpp"
#include "attention/kernels/table_memory.hpp"
#include "attention/sparsity/selection_memory.hpp"

namespace annulus::sparsity {

namespace {

// Nobody reads what lists and positions point to.
constexpr std::int64_t some_number = 0;
constexpr std::uint32_t some_bits = 0;

executor::BlockLists lists_of(const SelectionForm& form, int group) {
  executor::BlockLists lists{.block_size = form.block, .heads_of_list = form.of_query_heads ? 1 : group};
  if (form.of_queries)
    lists.query_blocks = &some_bits;
  else
    lists.block_row_starts = lists.block_columns = &some_number;
  return lists;
}

/// Bytes of the tables of the calls for columns, behind the plans of sequences that have one mask
/// (SparseAttention).
template <class T>
std::int64_t tables_of_columns(const plan::Problem& problem, const executor::BlockLists& lists,
                               std::int64_t columns, int rank, bool backward,
                               const attention::KernelOptions& kernel) {
  const PositionMap rows = problem.owned(rank);
  const std::int64_t lists_of_sequence = problem.heads / lists.heads_of_list;
  const auto array = [&](std::int64_t heads, std::int64_t count) {
    return Array4<const T, HostExec>(static_cast<const T*>(nullptr), problem.batch, heads, count,
                                     problem.head_dim);
  };
  attention::Operands<T, HostExec> in{
      .q = array(problem.heads, rows.count),
      .k = array(lists_of_sequence, columns),
      .v = array(lists_of_sequence, columns),
      .q_positions = rows,
      .kv_positions = {.count = columns},
      .mask = executor::with_lists(problem.mask.rule(), lists, std::int64_t{problem.batch} * problem.heads),
      .kv_listed = &some_number};
  in.mask.blocks_excluded = true;
  if (!backward) return attention::forward_tables(in, kernel);
  in.k = in.v = array(problem.heads, columns);  // HeadColumns
  in.mask.block_lists *= in.mask.heads_of_list;
  in.mask.heads_of_list = 1;
  return attention::backward_tables(in, kernel);
}

template <class T>
std::int64_t tables_of_columns(std::span<const executor::Plans> plans, const executor::BlockLists& lists,
                               std::int64_t columns, int rank, const attention::KernelOptions& kernel) {
  std::int64_t most = 0;
  for (const executor::Plans& of_sequences : plans)
    for (const bool backward : {false, true})
      if (!backward || of_sequences.backward)
        most = std::max(
            most, tables_of_columns<T>(of_sequences.forward.problem, lists, columns, rank, backward, kernel));
  return most;
}

}  // namespace

std::int64_t table_memory(const PatternOptions& options, std::span<const executor::Plans> plans, int rank,
                          const attention::KernelOptions& kernel) {
  if (plans.empty()) return 0;
  const plan::Problem& problem = plans.front().forward.problem;
  const SelectionForm form =
      selection_form(options, problem.mask.tokens(), !problem.mask.document_starts().empty());
  const executor::BlockLists lists = lists_of(form, problem.group());
  const std::int64_t of_lists = executor::table_memory(plans, rank, lists, kernel);
  if (form.columns == 0 || problem.dtype == DType::f32) return of_lists;
  return std::max(of_lists, problem.dtype == DType::bf16
                                ? tables_of_columns<bfloat16>(plans, lists, form.columns, rank, kernel)
                                : tables_of_columns<float16>(plans, lists, form.columns, rank, kernel));
}

}  // namespace annulus::sparsity
