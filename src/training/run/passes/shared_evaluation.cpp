#include "training/run/passes/shared_evaluation.hpp"

#include <vector>

#include <annulus/base/division.hpp>

namespace annulus::training {

namespace {

/// Takes part in a pass, but in no loss.
data::Sequence blank(const PositionMap& rows) {
  const auto count = static_cast<std::size_t>(rows.count);
  data::Sequence sequence;
  sequence.rows = rows;
  sequence.tokens.assign(count, 0);
  sequence.targets.assign(count, data::ignored_target);
  sequence.document_starts = {0};
  return sequence;
}

}  // namespace

bool evaluate_together(const SharedEvaluation& shared) {
  const std::int64_t groups = shared.world.size() / shared.context.size(),
                     group = shared.world.rank() / shared.context.size();
  const data::RankRows rows = shared.evaluator.rows();
  const std::int64_t at_once = shared.evaluator.sequences(), of_round = groups * at_once;
  const auto of_sequence = static_cast<std::size_t>(rows.rows.count);
  std::vector<double> losses(static_cast<std::size_t>(at_once) * of_sequence);
  std::vector<std::uint8_t> greedy(shared.asks_greedy ? losses.size() : 0);
  for (std::int64_t round = 0; round < ceil_divide(shared.sequences, of_round); ++round) {
    if (shared.world.all_reduce_value<std::int32_t>(shared.stopped() ? 1 : 0, comm::ReduceOp::max) != 0)
      return false;
    const std::int64_t first = round * of_round + group * at_once;
    std::vector<data::Sequence> sequences;
    for (std::int64_t index = first; index < first + at_once; ++index)
      sequences.push_back(rows.read([&](const PositionMap& of_rank) {
        return index < shared.sequences ? shared.read(index, of_rank) : blank(of_rank);
      }));
    shared.evaluator.evaluate(sequences, losses, greedy);
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const std::int64_t index = first + static_cast<std::int64_t>(i);
      if (index >= shared.sequences) break;
      const auto part = [&](const auto& all) {
        return std::span(all).subspan(all.empty() ? 0 : i * of_sequence, all.empty() ? 0 : of_sequence);
      };
      shared.use(index, sequences[i], part(losses), part(greedy));
    }
  }
  return true;
}

}  // namespace annulus::training
