#pragma once

#include <Kokkos_Timer.hpp>
#include <cstdint>
#include <memory>
#include <string_view>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/training/run/config.hpp>

#include "eval/evaluation/model.hpp"
#include "training/data/dataset.hpp"

namespace annulus::eval {

/// A model and the sequences that it is evaluated on.
struct Evaluation {
  training::Config config;  ///< with what the data decides
  std::shared_ptr<const data::TokenDataset> dataset;
  std::unique_ptr<comm::Communicator> context;  ///< this rank's group, which shares sequences
  std::unique_ptr<EvaluationModel> model;
};

/// Opens data.shards, which `option` has given, and loads the weights that are not there yet, by the
/// configuration that evaluation_config has made. Tells in the log what does not fit the model. Collective.
/// Throws Error naming the key, and where the tokenizer is another one than the model's.
Evaluation open_evaluation(comm::Communicator& world, const training::Config& given, LazyWeights& weights,
                           std::string_view option);

/// Tells in the log, from time to time, how many passes are done.
class PassProgress {
 public:
  explicit PassProgress(std::int64_t passes) : passes_(passes) {}
  /// Is called before each pass.
  void next();
  double seconds() const { return timer_.seconds(); }

 private:
  const Kokkos::Timer timer_;
  std::int64_t passes_, done_ = 0;
  double told_ = 0;
};

/// Throws Error where the model's mask shows tokens the later ones, so that nothing is left to be told.
void require_causal(const training::Config& config);

}  // namespace annulus::eval
