#include <annulus/model/activation_memory.hpp>

#include "model/activation_layout.hpp"

namespace annulus::model {

ActivationMemory activation_memory(const LlamaConfig& config, const PassRows& rows, DType type,
                                   const ActivationOptions& options) {
  const Shapes shapes(config, {rows.sequences, rows.tokens}, rows.early, options.chunk_rows,
                      static_cast<int>(size_of(type)));
  const ActivationLayout layout = activation_layout(shapes, options);
  return {.kept = layout.own, .working = layout.device() - layout.own, .host = layout.host};
}

}  // namespace annulus::model
