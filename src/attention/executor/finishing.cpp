#include <algorithm>
#include <ranges>

#include "attention/executor/proof/program.hpp"

/// Who is the last to touch a row of the caller's O. A local call that is can write its result as the caller
/// wants it, in 16 bits say, and need not leave it in fp32.
namespace annulus::executor {

namespace {

using plan::Tensor;

bool is_local_out(const StridedBlock& block) {
  return block.tensor == Tensor::o && block.slot == plan::local_slot && block.elements() > 0;
}

/// The caller's O, of all rows that take part.
std::vector<StridedBlock> local_out(const Program& program) {
  const plan::Problem& problem = program.plan.problem;
  const StridedBlock whole = block_of(problem.local(Tensor::o, program.rank),
                                      problem.whole(Tensor::o, program.rank), plan::local_slot, problem);
  return whole.elements() > 0 ? std::vector{whole} : std::vector<StridedBlock>();
}

/// Calls touch(block) with all of O that these exchanges send or receive.
template <class Touch>
void for_each_exchanged(const Program& program, const std::vector<int>& exchanges, const Touch& touch) {
  for (const int e : exchanges) {
    const Exchange& exchange = program.exchanges[static_cast<std::size_t>(e)];
    for (const auto* messages : {&exchange.sends, &exchange.receives})
      for (const ProgramMessage& m : *messages)
        if (is_local_out(m.block)) touch(m.block);
  }
}

/// Calls touch(block) with all of O that a step touches before its computes. Exchanges may touch theirs until
/// they have been waited for.
template <class Touch>
void for_each_before_computes(const Program& program, const ProgramStep& step, const Touch& touch) {
  for_each_exchanged(program, step.waits, touch);
  for (const Action& action : step.actions)
    for (const StridedBlock* block : {&action.from, &action.to})
      if (is_local_out(*block)) touch(*block);
  for_each_exchanged(program, step.posts, touch);
}

bool lies_in(const StridedBlock& part, const std::vector<StridedBlock>& blocks) {
  std::vector<StridedBlock> rest{part};
  for (const StridedBlock& block : blocks) rest = without(rest, block);
  return rest.empty();
}

}  // namespace

void mark_finishing(Program& program) {
  if (program.pass != plan::Pass::forward) return;
  program.unfinished = local_out(program);
  std::vector<StridedBlock> untouched = program.unfinished;  // by what comes behind
  const auto touch = [&](const StridedBlock& block) { untouched = without(untouched, block); };
  for (ProgramStep& step : program.steps | std::views::reverse) {
    for (LocalCall& call : step.computes | std::views::reverse) {
      if (!is_local_out(call.o)) continue;
      call.finishes = lies_in(call.o, untouched);
      if (call.finishes) program.unfinished = without(program.unfinished, call.o);
      touch(call.o);
    }
    for_each_before_computes(program, step, touch);
  }
}

void check_finishing(const Program& program) {
  Site site{program.plan, program.rank};
  std::vector<StridedBlock> finished;
  const auto touch = [&](const StridedBlock& block) {
    site.check(
        std::ranges::none_of(finished, [&](const StridedBlock& other) { return overlap(other, block); }),
        "touches rows of o that a call has finished");
  };
  for (const ProgramStep& step : program.steps) {
    for_each_before_computes(program, step, touch);
    for (const LocalCall& call : step.computes) {
      if (is_local_out(call.o)) touch(call.o);
      if (!call.finishes) continue;
      site.check(program.pass == plan::Pass::forward && is_local_out(call.o),
                 "finishes what is not the caller's o");
      finished.push_back(call.o);
    }
    ++site.step;
  }
  site.step = std::max(0, site.step - 1);
  std::vector<StridedBlock> rest =
      program.pass == plan::Pass::forward ? local_out(program) : std::vector<StridedBlock>();
  for (const StridedBlock& block : finished) rest = without(rest, block);
  for (const StridedBlock& block : program.unfinished) {
    touch(block);
    rest = without(rest, block);
  }
  site.check(rest.empty(), "leaves rows of o that nobody finishes");
}

}  // namespace annulus::executor
