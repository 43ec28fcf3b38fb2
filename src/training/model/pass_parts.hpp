#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <annulus/training/model/config.hpp>

namespace annulus::model {

/// A call that a model makes to its ParameterAccess.
struct UnitCall {
  enum class Kind : std::uint8_t { weights, release_weights, gradients, finish_gradients };
  Kind kind = Kind::weights;
  int unit = 0;
  int next = -1;  ///< of weights
};

/// A part of a pass through a model.
struct PassPart {
  enum class Kind : std::uint8_t { embedding, forward, loss, backward, embedding_backward };
  Kind kind = Kind::embedding;
  int layer = -1;  ///< of forward and backward
  std::vector<UnitCall> calls = {};
  std::size_t before = 0;  ///< so many of the calls are made before the part computes, the others behind it
};
/// "embedding", "forward of layer 3", "LM head and loss", "backward of layer 3", "backward of the embedding"
std::string text(const PassPart& part);

/// All of a forward and a backward pass, in order: what Model::train goes through, and predictions of memory.
std::vector<PassPart> pass_parts(const Config& config);
/// All of a forward pass by itself, up to the loss: what Model::evaluate goes through.
std::vector<PassPart> evaluation_parts(const Config& config);

}  // namespace annulus::model
