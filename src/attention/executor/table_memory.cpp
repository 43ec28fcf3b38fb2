#include "attention/executor/table_memory.hpp"

#include <algorithm>

#include "attention/executor/blocks/block_kernels.hpp"
#include "attention/executor/call_masks.hpp"
#include "attention/executor/proof/program.hpp"
#include "attention/kernels/table_memory.hpp"

namespace annulus::executor {

namespace {

/// Rows as they lie in memory, of an array that is not there.
template <class T>
Strided4<const T, HostExec> rows_without_data(StridedBlock block) {
  block.offset = 0;
  return view4<const T, HostExec>(block, static_cast<const T*>(nullptr));
}

template <class T>
std::int64_t tables_of_call(plan::Pass pass, const LocalCall& c, const MaskRule& mask,
                            const attention::KernelOptions& kernel) {
  const attention::Operands<T, HostExec> in{rows_without_data<T>(c.q),
                                            rows_without_data<T>(c.k),
                                            rows_without_data<T>(c.v),
                                            c.q_positions,
                                            c.kv_positions,
                                            mask};
  return pass == plan::Pass::forward ? attention::forward_tables(in, kernel)
                                     : attention::backward_tables(in, kernel);
}

template <class T>
std::int64_t tables_of_plan(const plan::Plan& plan, int rank, const BlockLists& blocks,
                            const attention::KernelOptions& kernel) {
  const plan::Problem& problem = plan.problem;
  const MaskRule mask = with_lists(problem.mask.rule(), blocks, std::int64_t{problem.batch} * problem.heads);
  std::int64_t most = 0;
  for (const ProgramStep& step : make_program(plan, rank, Cutting{}).steps)
    for (const LocalCall& call : step.computes)
      for_each_kernel_call(mask, problem.heads, call, [&](const LocalCall& c) {
        most = std::max(most, tables_of_call<T>(plan.pass, c, mask_of_call(mask, problem.heads, c), kernel));
      });
  return most;
}

}  // namespace

std::int64_t table_memory(std::span<const Plans> plans, int rank, const BlockLists& blocks,
                          const attention::KernelOptions& kernel) {
  std::int64_t most = 0;
  for (const Plans& of_sequence : plans)
    for (const plan::Plan* const plan : of_sequence.all()) {
      const DType type = plan->problem.dtype;
      if (type == DType::bf16) most = std::max(most, tables_of_plan<bfloat16>(*plan, rank, blocks, kernel));
      if (type == DType::f16) most = std::max(most, tables_of_plan<float16>(*plan, rank, blocks, kernel));
    }
  return most;
}

}  // namespace annulus::executor
