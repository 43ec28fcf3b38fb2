#pragma once

#include <array>
#include <cstdint>

#include <annulus/model/config.hpp>

/// Floating-point operations of forward and backward, two a multiply-add. The backward of a product counts as
/// two products; what a backward computes a second time does not count (model FLOPs, as in PaLM, appendix B).
namespace annulus::model {

/// A weight that rows are multiplied by, (out, in).
struct WeightMatrix {
  std::int64_t out = 0, in = 0;
};
/// Of a layer: q, k and v together; attention's output; gate and up together; down.
std::array<WeightMatrix, 4> layer_matrices(const LlamaConfig& config);

/// Of all products with weights, over `rows` tokens.
double dense_flops(const LlamaConfig& config, std::int64_t rows);

/// Of attention in all layers, over `pairs` unmasked (query, key) pairs of one head.
double attention_flops(const LlamaConfig& config, double pairs);

}  // namespace annulus::model
