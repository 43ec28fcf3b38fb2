#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include <annulus/core/tensor.hpp>
#include <annulus/distributed/attention.hpp>
#include <annulus/model/config.hpp>
#include <annulus/model/parameters.hpp>
#include <annulus/sequence/position_map.hpp>

namespace annulus::model {

/// A LLaMA with explicit forward and backward over one sequence that is spread over the ranks of a
/// context-parallel group. Every layer works on this rank's rows alone but for attention, which runs a
/// distributed plan. Holds activations and workspace for a fixed number of rows, but no parameters: those are
/// flat buffers of the caller.
template <class Exec>
class Llama {
 public:
  using Attention = distributed::Attention<Exec, float>;

  /// `positions` are this rank's rows of every sequence to come.
  Llama(const Exec& exec, const LlamaConfig& config, const PositionMap& positions);
  ~Llama();
  Llama(Llama&&) noexcept;
  Llama& operator=(Llama&&) noexcept;

  const LlamaConfig& config() const;
  const ParameterMap& parameter_map() const;

  /// Sums over this rank's rows.
  struct Loss {
    double sum = 0;          ///< of the cross-entropies, in nats
    std::int64_t valid = 0;  ///< targets that are not ignored
  };

  /// Forward and backward of grad_scale · Σ cross-entropy over this rank's rows. tokens and targets (rows),
  /// target −1 is ignored. Adds to `gradients`. Collective over the ranks of `attention`.
  Loss train(const Exec& exec, std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
             Attention& attention, const Array1<const float, Exec>& parameters, float grad_scale,
             const Array1<float, Exec>& gradients);

  /// Forward only.
  Loss evaluate(const Exec& exec, std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                Attention& attention, const Array1<const float, Exec>& parameters);

  /// Floating-point operations of forward and backward over `rows` rows outside attention.
  static double dense_flops(const LlamaConfig& config, std::int64_t rows);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace annulus::model
