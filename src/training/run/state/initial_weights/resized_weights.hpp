#pragma once

#include <annulus/training/run/config.hpp>
#include <cstdint>
#include <string>

#include <annulus/training/run/config.hpp>

#include "training/run/state/initial_weights/weight_source.hpp"

namespace annulus::training {

/// The weights of a model with another number of tokens: rows of embedding and LM head that are dropped at
/// the end, or added there. A new row is the mean of all old ones of its matrix (Hewitt, Initializing New
/// Word Embeddings for Pretrained Language Models), and noise of a hundredth of their deviation, column by
/// column, from which new tokens begin to differ: a pure function of the seed and the element.
class ResizedWeights {
 public:
  /// `map`: that of the run, whose model has the vocabulary of `from` or another one. All outlive this.
  ResizedWeights(const WeightSource& from, const model::ParameterMap& map, std::uint64_t seed)
      : from_(from), map_(map), seed_(seed) {}

  /// Calls use(at, values) with elements [begin, begin + count) of the run's flat buffer, as
  /// WeightSource::read does, with its errors.
  void read(std::int64_t begin, std::int64_t count, const WeightSource::Use& use) const;

 private:
  void add_rows(const model::Parameter& old, const model::Parameter& tensor, std::int64_t first,
                std::int64_t count, std::int64_t at, const WeightSource::Use& use) const;

  const WeightSource& from_;
  const model::ParameterMap& map_;
  std::uint64_t seed_;
};

/// What becomes of embedding and LM head, for the log; empty where both models have as many tokens.
std::string resizing_text(const ModelDescription& from, const Config& config);

}  // namespace annulus::training
