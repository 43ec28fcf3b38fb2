#include "training/run/validation.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/execution/region.hpp"
#include "base/units.hpp"
#include "training/data/windows.hpp"
#include "training/run/passes/shared_evaluation.hpp"

namespace annulus::training {

namespace {

/// Sums of a set, bucket by bucket: of losses in nats, and of targets.
struct Sums {
  Sums(const PositionBuckets& scale, std::int64_t tokens) : scale(scale) {
    std::size_t buckets = 1;
    for (std::int64_t end = scale.first; end < tokens; end *= scale.factor) ++buckets;
    values.resize(2 * buckets);
  }
  void add(std::int64_t before, double loss) {
    std::size_t bucket = 0;
    for (std::int64_t end = scale.first; end <= before; end *= scale.factor) ++bucket;
    values[2 * bucket] += loss;
    values[2 * bucket + 1] += 1;
  }
  ValidationLoss result(std::string set) const {
    ValidationLoss result{.set = std::move(set), .loss = 0, .targets = 0, .by_position = {}};
    double sum = 0;
    std::int64_t end = scale.first;
    for (std::size_t bucket = 0; bucket < values.size() / 2; ++bucket, end *= scale.factor) {
      const double loss = values[2 * bucket], targets = values[2 * bucket + 1];
      if (targets == 0) continue;
      sum += loss;
      result.targets += static_cast<std::int64_t>(targets);
      result.by_position.push_back({end, loss / targets, static_cast<std::int64_t>(targets)});
    }
    if (result.targets > 0) result.loss = sum / double(result.targets);
    return result;
  }

  PositionBuckets scale;
  std::vector<double> values;  // doubles count up to 2^53 exactly
};

}  // namespace

Validation::Validation(comm::Communicator& world, const comm::Communicator& context,
                       std::vector<ValidationSet> sets, std::int64_t sequences,
                       const PositionBuckets& buckets)
    : world_(world), context_(context), sequences_(sequences), buckets_(buckets), sets_(std::move(sets)) {}

std::int64_t Validation::sequences_of(const ValidationSet& set) const {
  const std::int64_t all = data::Windows(*set.dataset, set.stride).count();
  return sequences_ == 0 ? all : std::min(sequences_, all);
}

std::optional<std::vector<ValidationLoss>> Validation::run(Evaluator& evaluator,
                                                           const std::function<bool()>& stopped) const {
  const Region region("annulus::training::validation");
  std::vector<ValidationLoss> results;
  for (const ValidationSet& set : sets_) {
    const data::Windows windows(*set.dataset, set.stride);
    const std::int64_t count = sequences_of(set);
    Sums sums(buckets_, set.dataset->sequence_tokens());
    const auto add = [&](std::int64_t, const data::Sequence& sequence, std::span<const double> losses, auto) {
      const std::vector<std::int64_t>& starts = sequence.document_starts;
      const PositionMap& rows = sequence.rows;
      auto start = starts.begin();  // of the document of the row
      for (std::int64_t row = 0; row < rows.count; ++row) {
        const std::int64_t position = rows(row);
        while (std::next(start) != starts.end() && *std::next(start) <= position) ++start;
        const auto at = static_cast<std::size_t>(row);
        if (sequence.targets[at] != data::ignored_target) sums.add(position - *start, losses[at]);
      }
    };
    const auto read = [&](std::int64_t index, const PositionMap& of) {
      return windows.read(index * windows.count() / count, of);
    };
    if (!evaluate_together({.world = world_,
                            .context = context_,
                            .evaluator = evaluator,
                            .sequences = count,
                            .read = read,
                            .use = add,
                            .stopped = stopped}))
      return std::nullopt;
    world_.all_reduce(HostExec(), sums.values.data(), sums.values.size(), DType::f64, comm::ReduceOp::sum);
    results.push_back(sums.result(set.name));
  }
  return results;
}

nlohmann::json to_json(const std::vector<ValidationLoss>& losses) {
  nlohmann::json json = nlohmann::json::object();
  for (const ValidationLoss& of : losses) {
    nlohmann::json by_position = nlohmann::json::object();
    for (const ValidationLoss::Bucket& bucket : of.by_position)
      by_position[std::to_string(bucket.up_to)] = {{"loss", bucket.loss}, {"targets", bucket.targets}};
    json[of.set] = {{"loss", of.loss}, {"targets", of.targets}, {"by_position", by_position}};
  }
  return json;
}

std::string text(const std::vector<ValidationLoss>& losses) {
  std::vector<std::string> sets;
  for (const ValidationLoss& of : losses) {
    std::vector<std::string> buckets;
    for (const ValidationLoss::Bucket& bucket : of.by_position)
      buckets.push_back(fmt::format("{}K {:.4f}", bucket.up_to / 1024, bucket.loss));
    sets.push_back(
        fmt::format("{} {:.4f}{}", of.set, of.loss,
                    buckets.size() > 1 ? fmt::format(" (up to {})", fmt::join(buckets, ", ")) : ""));
  }
  return fmt::format("{}", fmt::join(sets, "; "));
}

}  // namespace annulus::training
