#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <annulus/training/model/parameters.hpp>

namespace annulus::model {

/// A part of a pass through a model.
struct PassPart {
  enum class Kind : std::uint8_t { embedding, forward, loss, backward, embedding_backward };
  Kind kind = Kind::embedding;
  int layer = -1;  ///< of forward and backward
  friend bool operator==(const PassPart&, const PassPart&) = default;
};
/// "embedding", "forward of layer 3", "LM head and loss", "backward of layer 3", "backward of the embedding"
std::string text(const PassPart& part);

/// A call that a model makes to its ParameterAccess.
struct UnitCall {
  enum class Kind : std::uint8_t { weights, release_weights, gradients, finish_gradients };
  Kind kind = Kind::weights;
  int unit = 0;
  int next = -1;  ///< of weights
  PassPart part = {};
  /// `part` does not count.
  friend bool operator==(const UnitCall& a, const UnitCall& b) {
    return a.kind == b.kind && a.unit == b.unit && a.next == b.next;
  }
};

/// All calls of Model::train, in order. A test holds the two together.
std::vector<UnitCall> unit_calls(const ParameterMap& map);

}  // namespace annulus::model
