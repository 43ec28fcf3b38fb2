#include "train/start_weights.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <optional>
#include <string>

#include <annulus/base/error.hpp>
#include <annulus/comm/agreement.hpp>
#include <annulus/io/progress_line.hpp>
#include <annulus/train/weight_source.hpp>

#include "train/checkpoint_parts.hpp"
#include "train/model_from.hpp"

namespace annulus::train {

namespace {

using Check = checkpoint::Checkpoint::Check;

void read_weights(const WeightSource& from, bool shows, Learner& learner) {
  const std::vector<checkpoint::Slice> share = learner.share();
  std::optional<io::ProgressLine> line;
  if (shows)
    line.emplace("loading the weights of model.from",
                 elements_of(share) * static_cast<std::int64_t>(sizeof(float)));
  const FlatBuffer parameters = learner.master_buffers().parameters;
  std::int64_t bytes = 0;
  for (const checkpoint::Slice& slice : share)
    from.read(slice.begin, slice.size(), [&](std::int64_t at, std::span<const float> values) {
      parameters.write(slice.offset + at, values);
      bytes += static_cast<std::int64_t>(values.size_bytes());
      if (line) line->show(bytes);
    });
}

void announce_start(const WeightSource& from, const Config& config) {
  const bool saved = from.model().format == WeightsFormat::checkpoint;
  spdlog::info(
      "starts from the weights of model.from = '{}' ({}): optimizer, step and data start anew",
      config.model_from,
      saved ? fmt::format("a checkpoint after {} optimizer steps", from.step()) : "Hugging Face's format");
  const ModelNotes notes = notes_on_model(from.model(), config);
  for (const std::string& note : notes.info) spdlog::info("{}", note);
  for (const std::string& note : notes.warnings) spdlog::warn("{}", note);
}

}  // namespace

void start_from_weights(comm::Communicator& world, Learner& learner, const Config& config) {
  const bool first = world.rank() == 0;
  std::optional<WeightSource> from;
  std::string problem;
  comm::Facts facts;
  try {
    from.emplace(config.model_from, first ? Check::whole : Check::manifest);
    facts.add("the contents of model.from", fmt::format("{:016x}", from->fingerprint()),
              "give every rank the same weights");
  } catch (const Error& error) {
    problem = fmt::format("model.from: {}", error.what());
  }
  comm::throw_together(world, problem);
  comm::require_agreement(world, facts);
  if (first) announce_start(*from, config);
  try {
    read_weights(*from, first, learner);
  } catch (const Error& error) {
    problem = fmt::format("model.from: {}", error.what());
  }
  comm::throw_together(world, problem);
  learner.restored(0);
}

}  // namespace annulus::train
