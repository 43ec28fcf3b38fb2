#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <annulus/attention/comm/communicator.hpp>

#include "training/run/state/initial_weights/weight_source.hpp"

namespace annulus::eval {

/// A model that tells the next token, with all its weights in the memory of one rank.
class NextToken {
 public:
  virtual ~NextToken() = default;

  /// What computes, in which type.
  virtual std::string description() const = 0;

  /// Computes the logits (vocabulary) of the token behind `prefix`, by a forward pass over all of
  /// ModelChoices::tokens.
  virtual void logits(std::span<const std::int32_t> prefix, std::span<float> logits) = 0;
};

/// How a model computes.
struct ModelChoices {
  std::int64_t tokens = 0;      ///< of the longest prefix, from 1
  std::string device = "auto";  ///< as run.device
  std::string dtype;            ///< f32 or bf16; empty: as the model says
};

/// Reads the weights. `one_rank` outlives what comes back. Throws Error where the model's mask shows tokens
/// the later ones, and naming the option that does not fit.
std::unique_ptr<NextToken> make_next_token(comm::Communicator& one_rank,
                                           const training::WeightSource& weights,
                                           const ModelChoices& choices);

}  // namespace annulus::eval
