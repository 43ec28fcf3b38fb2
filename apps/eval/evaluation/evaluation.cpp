#include "eval/evaluation/evaluation.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <annulus/base/error.hpp>

#include "base/units.hpp"
#include "eval/evaluation/model_folder.hpp"
#include "training/io/logging.hpp"
#include "training/run/config/resolve.hpp"
#include "training/run/groups.hpp"
#include "training/run/run_data.hpp"
#include "training/run/state/initial_weights/model_from.hpp"
#include "training/run/together.hpp"

namespace annulus::eval {

Evaluation open_evaluation(comm::Communicator& world, const training::Config& given, LazyWeights& weights,
                           std::string_view option) {
  Evaluation opened;
  opened.dataset = training::open_data(world, given);
  const data::TokenizerIdentity& packed_with = opened.dataset->tokenizer();
  const std::int64_t known = weights.source().model().shape.vocabulary;
  require(packed_with.vocabulary <= known,
          "{}: the shards were packed with tokenizer {} of {} entries, more than the {} of '{}': pack them "
          "with the model's own tokenizer",
          option, packed_with.name, packed_with.vocabulary, known, given.model_from);
  opened.config = training::complete(given, packed_with);
  training::together(world, [&] {
    if (world.rank() == 0)
      require_tokenizer(weights.source(), opened.config.model_from, opened.dataset->tokenizer(), option);
  });
  opened.context = training::context_group(world, opened.config.parallel);
  opened.model =
      make_evaluation_model(world, *opened.context, opened.config, weights.get(world, opened.config),
                            training::typical_documents(opened.dataset, opened.config));
  if (world.rank() == 0) {
    const training::ModelNotes notes = training::notes_on_model(weights.source().model(), opened.config);
    for (const std::string& note : notes.info) logging::info("{}", note);
    for (const std::string& note : notes.warnings) logging::warn("{}", note);
  }
  return opened;
}

void PassProgress::next() {
  constexpr double every = 10;  // seconds
  const double now = timer_.seconds();
  if (done_ > 0 && now - told_ >= every) {
    told_ = now;
    logging::info("{} of {} passes, {} left", done_, passes_,
                  duration_text(now / double(done_) * double(passes_ - done_)));
  }
  ++done_;
}

void require_causal(const training::Config& config) {
  const std::vector<Mask> masks = training::masks_of(config, config.data.sequence_length);
  require(std::ranges::all_of(masks, [](const Mask& mask) { return mask.rule().right == 0; }),
          "the model was trained with attention.mask = '{}', which shows tokens the later ones: it cannot "
          "tell the next token of a text that ends",
          config.attention.mask);
}

}  // namespace annulus::eval
