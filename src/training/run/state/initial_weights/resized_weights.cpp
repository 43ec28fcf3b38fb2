#include "training/run/state/initial_weights/resized_weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "training/run/saving/checkpoint_parts.hpp"

namespace annulus::training {

namespace {

constexpr double noise = 0.01;

/// Mean and deviation of a matrix' rows, column by column.
struct Columns {
  std::vector<double> mean, deviation;
};

Columns columns_of(const WeightSource& from, const model::Parameter& matrix) {
  const auto columns = static_cast<std::size_t>(matrix.columns);
  Columns of{std::vector<double>(columns), std::vector<double>(columns)};
  from.read(matrix.offset, matrix.size(), [&](std::int64_t at, std::span<const float> values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double value = values[i];
      const std::size_t column = (static_cast<std::size_t>(at) + i) % columns;
      of.mean[column] += value;
      of.deviation[column] += value * value;
    }
  });
  const auto rows = static_cast<double>(matrix.rows);
  for (std::size_t column = 0; column < columns; ++column) {
    of.mean[column] /= rows;
    of.deviation[column] =
        std::sqrt(std::max(0.0, of.deviation[column] / rows - of.mean[column] * of.mean[column]));
  }
  return of;
}

}  // namespace

void ResizedWeights::add_rows(const model::Parameter& old, const model::Parameter& tensor, std::int64_t first,
                              std::int64_t count, std::int64_t at, const WeightSource::Use& use) const {
  const Columns columns = columns_of(from_, old);
  std::vector<float> values;
  for (std::int64_t done = 0; done < count; done += std::ssize(values)) {
    values.resize(static_cast<std::size_t>(std::min(count - done, tensor.columns)));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::int64_t element = first + done + static_cast<std::int64_t>(i);
      const auto column = static_cast<std::size_t>(element % tensor.columns);
      values[i] = static_cast<float>(
          columns.mean[column] +
          noise * columns.deviation[column] *
              double(model::normal_number(seed_, static_cast<std::uint64_t>(tensor.offset + element))));
    }
    use(at + done, values);
  }
}

void ResizedWeights::read(std::int64_t begin, std::int64_t count, const WeightSource::Use& use) const {
  for_each_tensor(
      map_, begin, count,
      [&](const model::Parameter& tensor, std::int64_t first, std::int64_t size, std::int64_t at) {
        const model::Parameter& old = from_.map().find(tensor.name);
        const std::int64_t there = std::clamp<std::int64_t>(old.size() - first, 0, size);
        if (there > 0)
          from_.read(old.offset + first, there,
                     [&](std::int64_t inside, std::span<const float> values) { use(at + inside, values); });
        if (there < size) add_rows(old, tensor, first + there, size - there, at + there, use);
      });
}

std::string resizing_text(const ModelDescription& from, const Config& config) {
  const std::int64_t before = from.shape.vocabulary, now = config.model.vocabulary;
  if (before == now) return "";
  const char* what = config.model.tied ? "the embedding, which the LM head shares," : "embedding and LM head";
  return now > before ? fmt::format(
                            "model.vocabulary = {}: {} of the model get {} rows more than its {}, each the "
                            "mean of these with noise of a hundredth of their deviation (run.seed = {})",
                            now, what, now - before, before, config.run.seed)
                      : fmt::format("model.vocabulary = {}: {} of the model lose the last {} of its {} rows",
                                    now, what, before - now, before);
}

}  // namespace annulus::training
