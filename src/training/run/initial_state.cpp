#include "training/run/initial_state.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <annulus/base/error.hpp>

#include "training/checkpoint/kept_files.hpp"
#include "training/io/logging.hpp"
#include "training/io/progress_line.hpp"
#include "training/run/saving/checkpoint_parts.hpp"
#include "training/run/saving/snapshot.hpp"
#include "training/run/state/initial_weights/model_from.hpp"
#include "training/run/state/initial_weights/resized_weights.hpp"
#include "training/run/state/initial_weights/weight_source.hpp"
#include "training/run/together.hpp"

namespace annulus::training {

namespace {

using Check = checkpoint::Checkpoint::Check;

void read_share(const checkpoint::Checkpoint& from, bool shows, Learner& learner) {
  const std::vector<checkpoint::Slice> share = learner.state().share();
  std::optional<io::ProgressLine> line;
  if (shows)
    line.emplace(fmt::format("loading {}", from.path().filename().string()),
                 Snapshot::bytes(elements_of(share)));
  load_slices(from, learner.map(), share, learner.state().master_buffers(), [&](std::int64_t bytes) {
    if (line) line->show(bytes);
  });
}

void read_weights(const ResizedWeights& from, bool shows, Learner& learner) {
  const std::vector<checkpoint::Slice> share = learner.state().share();
  std::optional<io::ProgressLine> line;
  if (shows)
    line.emplace("loading the weights of model.from",
                 elements_of(share) * static_cast<std::int64_t>(sizeof(float)));
  const FlatBuffer parameters = learner.state().master_buffers().parameters;
  std::int64_t bytes = 0;
  for (const checkpoint::Slice& slice : share)
    from.read(slice.begin, slice.size(), [&](std::int64_t at, std::span<const float> values) {
      parameters.write(slice.offset + at, values);
      bytes += static_cast<std::int64_t>(values.size_bytes());
      if (line) line->show(bytes);
    });
}

/// Keeps what exports need of the model in the folder of the run, where its data go with it.
void keep_files(const WeightSource& from, const Config& config, const data::TokenizerIdentity& data) {
  std::vector<std::string> notes;
  weights::ModelFiles files = from.files(notes);
  if (!is_tokenizer_of(data, files)) {
    files.clear();
    notes.push_back(
        fmt::format("data.shards were packed with another tokenizer ({}, {} entries) than that of model.from "
                    "= '{}': exports go without tokenizer, ids of special tokens and generation_config.json; "
                    "pack with the model's tokenizer (docs/models.md), or copy by hand what fits",
                    data.name, data.vocabulary, config.model_from));
  }
  for (const std::string& note : notes) logging::warn("{}", note);
  checkpoint::write_kept_files(config.run.folder,
                               {.vocabulary = config.model.vocabulary, .contents = std::move(files)});
}

void announce_start(const WeightSource& from, const Config& config) {
  const bool saved = from.model().format == WeightsFormat::checkpoint;
  logging::info(
      "starts from the weights of model.from = '{}' ({}): optimizer, step and data start anew",
      config.model_from,
      saved ? fmt::format("a checkpoint after {} optimizer steps", from.step()) : "Hugging Face's format");
  const ModelNotes notes = notes_on_model(from.model(), config);
  for (const std::string& note : notes.info) logging::info("{}", note);
  for (const std::string& note : notes.warnings) logging::warn("{}", note);
  if (const std::string resized = resizing_text(from.model(), config); !resized.empty())
    logging::info("{}; the tokenizer must follow wherever the model goes", resized);
}

}  // namespace

checkpoint::Progress restore(comm::Communicator& world, Learner& learner, RunFolder* folder) {
  for (;;) {
    const std::string path = share_text(
        world, folder != nullptr ? std::filesystem::absolute(folder->resume_from()->path()).string() : "");
    std::optional<checkpoint::Checkpoint> own;  // rank 0 has opened it
    together(world, [&] {
      if (folder == nullptr) try {
          own.emplace(path, Check::manifest);
        } catch (const Error& error) {
          fail(
              "{} (rank 0 has read it: run.folder and --resume are to lie "
              "where all machines of the run see them)",
              error.what());
        }
    });
    const checkpoint::Checkpoint& from = own ? *own : *folder->resume_from();
    together(world, [&] { from.require_tensors(tensors_of(learner.map())); });
    try {
      together(world, [&] { read_share(from, folder != nullptr, learner); });
    } catch (const Error& damage) {
      together(world, [&] {
        if (folder != nullptr) folder->pass_over(damage.what());
      });
      continue;
    }
    learner.state().restored(from.progress().step - from.progress().skipped_steps);
    return from.progress();
  }
}

void start_from_weights(comm::Communicator& world, Learner& learner, const Config& config,
                        const data::TokenizerIdentity& tokenizer) {
  const bool first = world.rank() == 0;
  std::optional<WeightSource> from;
  const auto step = [&](const auto& action) {
    together(world, [&] {
      try {
        action();
      } catch (const Error& error) {
        fail("model.from: {}", error.what());
      }
    });
  };
  comm::Facts facts;
  step([&] {
    from.emplace(config.model_from, first ? Check::whole : Check::manifest);
    facts.add("the contents of model.from", fmt::format("{:016x}", from->fingerprint()),
              "give every rank the same weights");
  });
  comm::require_agreement(world, facts);
  step([&] {
    if (first) {
      announce_start(*from, config);
      keep_files(*from, config, tokenizer);
    }
    read_weights({*from, learner.map(), static_cast<std::uint64_t>(config.run.seed)}, first, learner);
  });
  learner.state().restored(0);
}

}  // namespace annulus::training
