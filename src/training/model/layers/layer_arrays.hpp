#pragma once

#include <cstddef>

#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/execution/region.hpp"
#include "training/model/layers/layer_tensors.hpp"
#include "training/model/ops.hpp"

namespace annulus::model {

/// Where the arrays of a layer lie: what it keeps in a block of its own, the rest in the block that serves
/// all layers.
template <class Exec, class T>
struct LayerArrays {
  const Shapes* shapes = nullptr;
  TensorSet kept;  // what lies in `own`
  std::byte *own = nullptr, *shared = nullptr;
  const Placement *own_places = nullptr, *shared_places = nullptr;

  std::byte* data(Tensor tensor) const {
    const auto index = static_cast<std::size_t>(tensor);
    return kept.has(tensor) ? own + own_places->offset[index] : shared + shared_places->offset[index];
  }
  /// The tensor has the rows of a chunk alone.
  bool of_chunk(Tensor tensor) const {
    using enum Tensor;
    constexpr TensorSet always{normed, ffn, d_ffn, d_normed, d_joined, d_delta},
        unless_kept{middle,          ffn_inverse_rms,     gate_up,   qkv,
                    attention_delta, attention_delta_rms, ffn_delta, ffn_delta_rms};
    return always.has(tensor) || (unless_kept.has(tensor) && !kept.has(tensor));
  }
};

/// The arrays that a step of a pass has named. Throws Error for any other: its memory may hold something
/// else.
template <class Exec, class T>
class StepArrays {
 public:
  StepArrays(const LayerArrays<Exec, T>& arrays, TensorSet uses)
      : arrays_(arrays), shapes_(*arrays.shapes), uses_(uses) {}

  /// (rows, columns), or those of a chunk.
  Array2<T, Exec> matrix(Tensor tensor) const {
    return Array2<T, Exec>(data<T>(tensor), shapes_.extent.rows(), columns(tensor));
  }
  Array2<T, Exec> matrix(Tensor tensor, Chunk chunk) const {
    const std::int64_t first = arrays_.of_chunk(tensor) ? 0 : chunk.first;
    return Array2<T, Exec>(data<T>(tensor) + first * columns(tensor), chunk.count, columns(tensor));
  }
  /// (rows), or those of a chunk.
  Array1<float, Exec> vector(Tensor tensor) const {
    return Array1<float, Exec>(data<float>(tensor), shapes_.extent.rows());
  }
  Array1<float, Exec> vector(Tensor tensor, Chunk chunk) const {
    return Array1<float, Exec>(data<float>(tensor) + (arrays_.of_chunk(tensor) ? 0 : chunk.first),
                               chunk.count);
  }
  /// All elements of an fp32 tensor.
  Array1<float, Exec> elements(Tensor tensor) const {
    return Array1<float, Exec>(data<float>(tensor),
                               shapes_.bytes(tensor, true) / static_cast<std::int64_t>(sizeof(float)));
  }
  /// (sequences, heads | kv_heads, tokens, padded_head_dim) of E.
  template <class E = T>
  Array4<E, Exec> heads(Tensor tensor) const {
    using enum Tensor;
    constexpr TensorSet of_keys{k, v, d_k, d_v};
    const Config& c = shapes_.config;
    return Array4<E, Exec>(data<E>(tensor), shapes_.extent.sequences,
                           of_keys.has(tensor) ? c.kv_heads : c.heads, shapes_.extent.tokens,
                           c.padded_head_dim());
  }
  /// (sequences, heads, tokens)
  Array3<float, Exec> scores(Tensor tensor) const {
    const std::int64_t tokens = tensor == Tensor::late_lse ? shapes_.late() : shapes_.extent.tokens;
    return Array3<float, Exec>(data<float>(tensor), shapes_.extent.sequences, shapes_.config.heads, tokens);
  }
  /// Attention's output (rows, heads·head_dim) seen as (sequences, heads, tokens, head_dim).
  Strided4<T, Exec> by_heads(Tensor tensor) const {
    const auto tokens = static_cast<std::size_t>(shapes_.extent.tokens),
               width = static_cast<std::size_t>(columns(tensor)),
               head_dim = static_cast<std::size_t>(shapes_.config.head_dim);
    return Strided4<T, Exec>(
        data<T>(tensor),
        Kokkos::LayoutStride(static_cast<std::size_t>(shapes_.extent.sequences), tokens * width,
                             width / head_dim, head_dim, tokens, width, head_dim, 1));
  }
  /// Workspace (blocks of `rows`, columns) of sums over rows.
  Array2<float, Exec> partial(Tensor tensor, std::int64_t rows) const {
    return Array2<float, Exec>(data<float>(tensor), norm_partial_rows(rows), columns(tensor));
  }
  /// Sums over all heads (chunk, 4).
  Array2<float, Exec> head_sums(Chunk chunk) const {
    return Array2<float, Exec>(data<float>(Tensor::joint_sums), chunk.count, 4);
  }

 private:
  template <class E>
  E* data(Tensor tensor) const {
    require(uses_.has(tensor), "a step of a layer takes tensor {}, which it has not named",
            static_cast<int>(tensor));
    return reinterpret_cast<E*>(arrays_.data(tensor));
  }
  std::int64_t columns(Tensor tensor) const {
    using enum Tensor;
    switch (tensor) {
      case joined:
      case late_joined:
      case d_joined:
        return shapes_.q_width();
      case qkv:
      case qkv_partial:
        return shapes_.qkv_width();
      case gate_up:
        return 2 * std::int64_t{shapes_.config.ffn};
      case ffn:
      case d_ffn:
        return shapes_.config.ffn;
      default:
        return shapes_.config.hidden;
    }
  }

  const LayerArrays<Exec, T>& arrays_;
  const Shapes& shapes_;
  TensorSet uses_;
};

/// Runs the steps of a pass.
template <class Exec, class T>
class RunSteps {
 public:
  explicit RunSteps(const LayerArrays<Exec, T>& arrays) : arrays_(arrays) {}
  template <class Action>
  void operator()(TensorSet uses, const Action& action) const {
    action(StepArrays<Exec, T>(arrays_, uses));
  }
  /// In a region of this name.
  template <class Action>
  void operator()(const char* name, TensorSet uses, const Action& action) const {
    const Region region(name);
    (*this)(uses, action);
  }

 private:
  LayerArrays<Exec, T> arrays_;
};

}  // namespace annulus::model
