#pragma once

#include <cstdint>

#include <annulus/base/dtype.hpp>
#include <annulus/model/config.hpp>
#include <annulus/model/recompute.hpp>

namespace annulus::model {

/// Bytes that all layers of a model in `type` (f32 or bf16) keep for their backward passes, for `rows` tokens
/// of this rank, and what one layer computes again. Llama holds more: scratch arrays that serve all layers,
/// and what its inputs and outputs need.
std::int64_t kept_activation_bytes(const LlamaConfig& config, std::int64_t rows, DType type,
                                   Recompute recompute);

}  // namespace annulus::model
