#pragma once

#include <functional>
#include <string>
#include <vector>

#include <annulus/attention/comm/loopback.hpp>

#include "eval/evaluation/config.hpp"
#include "eval/evaluation/model.hpp"
#include "eval/perplexity.hpp"
#include "support/error_text.hpp"
#include "training/data/shards.hpp"
#include "training/weights/hf_folder.hpp"

/// Small models in Hugging Face's format, and streams of their tokens.
namespace annulus::eval::test {

using annulus::test::TemporaryFolder;
using data::test::RawShard;

/// A folder for weights and shards.
class EvaluationTest : public testing::Test {
 protected:
  std::string file(const std::string& name) const { return folder_.file(name); }

  /// A LLaMA of `layers` layers and 61 ids, with 128 positions.
  std::string model(const std::string& name, int layers = 2) const {
    weights::HfConfig config = weights::test::small_hf_config();
    config.shape.vocabulary = 61;
    config.shape.layers = layers;
    config.positions = 128;
    weights::test::write_small_model(file(name), config, DType::f32);
    return file(name);
  }

  /// A shard of `tokens` ids below 60, in documents that start at `documents`.
  static RawShard<std::uint16_t> numbers(std::int64_t tokens,
                                         const std::vector<std::uint64_t>& documents = {0}) {
    RawShard<std::uint16_t> shard;
    shard.tokenizer = "numbers";
    shard.vocabulary = 61;
    shard.end_of_document = 60;
    shard.documents = documents;
    shard.tokens.clear();
    for (std::int64_t i = 0; i < tokens; ++i)
      shard.tokens.push_back(static_cast<std::uint16_t>((i * i * 7 + i / 3) % 60));
    return shard;
  }
  std::string write(const std::string& name, const RawShard<std::uint16_t>& shard) const {
    shard.write(file(name));
    return file(name);
  }

  static training::Config config_of(const EvaluationRequest& request) {
    EvaluationRequest on_host = request;
    on_host.overrides.insert(on_host.overrides.begin(), "run.device=cpu");
    return evaluation_config(training::describe_model(request.folder), on_host);
  }

  /// Perplexity by `ranks` ranks that are threads.
  static Perplexity perplexity_of(int ranks, const EvaluationRequest& request,
                                  const WindowChoices& choices = {}) {
    Perplexity result;
    comm::run_loopback(Topology::uniform(ranks, ranks), [&](comm::Communicator& world) {
      const training::WeightSource weights(request.folder);
      LazyWeights lazy(weights);
      const Perplexity mine = measure_perplexity(world, config_of(request), lazy, choices);
      if (world.rank() == 0) result = mine;
    });
    return result;
  }

  /// Calls use(model, group) on each of `ranks` ranks.
  static void with_model(int ranks, const EvaluationRequest& request,
                         const std::function<void(EvaluationModel&, comm::Communicator&)>& use) {
    comm::run_loopback(Topology::uniform(ranks, ranks), [&](comm::Communicator& world) {
      const training::WeightSource weights(request.folder);
      const training::Config config = config_of(request);
      use(*make_evaluation_model(world, world, config, load_weights(world, config, &weights)), world);
    });
  }

 private:
  const TemporaryFolder folder_;
};

}  // namespace annulus::eval::test
