#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/base/kokkos/tensor.hpp>
#include <annulus/training/model/config.hpp>

namespace annulus::model {

/// One parameter tensor inside the flat buffer. Matrices are (rows, columns) = (out features, in features),
/// row-major.
struct Parameter {
  std::string name;
  std::int64_t offset = 0;  ///< elements from the start of the flat buffer
  std::int64_t rows = 0, columns = 0;
  float init_mean = 0;       ///< of the initial values: what makes norms multiply by one, else zero
  float init_deviation = 0;  ///< standard deviation of the initial values; 0: all are init_mean
  TensorKind kind = TensorKind::matrix;
  std::int64_t size() const { return rows * columns; }
};

/// Offsets of one layer's tensors. Query, key and value weights are neighbours, so one product makes all
/// three; the same holds for gate and up.
struct LayerParameters {
  // Norms, where the block has one there (Config::block): (hidden) each.
  std::int64_t attention_norm = 0, attention_out_norm = 0, ffn_norm = 0, ffn_out_norm = 0;
  std::int64_t qkv = 0;            ///< ((heads + 2·kv_heads)·head_dim, hidden)
  std::int64_t qkv_bias = 0;       ///< ((heads + 2·kv_heads)·head_dim), with Block::qkv_bias
  std::int64_t qk_norm = 0;        ///< q's gains, then k's (Config::q_gains, k_gains), with Block::qk_norm
  std::int64_t attention_out = 0;  ///< (hidden, heads·head_dim)
  std::int64_t out_bias = 0;       ///< (hidden), with Block::out_bias
  std::int64_t gate_up = 0;        ///< (2·ffn, hidden)
  std::int64_t down = 0;           ///< (hidden, ffn)
  std::int64_t sinks = -1;         ///< (heads), with LayerKind::sinks; else −1
};

/// Neighbours in the flat buffer that the model needs at the same time: elements [begin, end). What FSDP
/// calls a unit: gathered, reduced and released as one.
struct ParameterUnit {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

/// Where every parameter of a model lies in one flat buffer. Parameters, gradients and optimizer moments are
/// such buffers, so that they can be reduced, clipped, saved and sharded without knowing the model.
class ParameterMap {
 public:
  ParameterMap() = default;
  explicit ParameterMap(const Config& config);

  /// Elements of the flat buffer.
  std::int64_t size() const { return size_; }
  /// All tensors in order of their offsets; they cover the buffer without gaps.
  const std::vector<Parameter>& all() const { return all_; }
  /// The parameter of this name. Throws Error listing a near name when there is none.
  const Parameter& find(std::string_view name) const;
  /// The one that holds this element of the flat buffer.
  const Parameter& at(std::int64_t element) const;

  std::int64_t embedding() const { return embedding_; }
  std::int64_t final_norm() const { return final_norm_; }
  /// The embedding's offset when tied.
  std::int64_t lm_head() const { return lm_head_; }
  const LayerParameters& layer(int index) const { return layers_[static_cast<std::size_t>(index)]; }

  /// The embedding, then each layer, then the final norm with the LM head (without it when tied); they cover
  /// the buffer in this order without gaps.
  const std::vector<ParameterUnit>& units() const { return units_; }
  const ParameterUnit& unit(int index) const { return units_[static_cast<std::size_t>(index)]; }
  /// "the embedding", "layer 3", "the final norm and the LM head": for messages.
  std::string unit_name(int index) const;
  static constexpr int embedding_unit() { return 0; }
  static constexpr int layer_unit(int layer) { return 1 + layer; }
  int final_unit() const { return static_cast<int>(units_.size()) - 1; }
  /// Unit of the LM head: the embedding's when tied.
  int lm_head_unit() const { return lm_head_ == embedding_ ? embedding_unit() : final_unit(); }

 private:
  std::int64_t add_matrix(std::string name, std::int64_t rows, std::int64_t columns, float init_deviation,
                          TensorKind kind = TensorKind::matrix);
  std::int64_t add_vector(std::string name, std::int64_t size, float init, TensorKind kind);

  std::vector<Parameter> all_;
  std::vector<LayerParameters> layers_;
  std::vector<ParameterUnit> units_;
  std::int64_t size_ = 0, embedding_ = 0, final_norm_ = 0, lm_head_ = 0;
};

/// A standard normal number, a pure function of seed and element: what initial values are made of.
float normal_number(std::uint64_t seed, std::uint64_t element);

/// Fills a flat buffer with initial values: normal, a pure function of (seed, element), so that every number
/// of ranks starts from the same model.
template <class Exec>
void initialize(const Exec& exec, const ParameterMap& map, std::uint64_t seed,
                const Array1<float, Exec>& parameters);

/// Fills elements [first, first + values.extent(0)) alone.
template <class Exec>
void initialize_range(const Exec& exec, const ParameterMap& map, std::uint64_t seed, std::int64_t first,
                      const Array1<float, Exec>& values);

}  // namespace annulus::model
