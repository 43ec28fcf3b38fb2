#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <annulus/base/dtype.hpp>

#include "training/model/parameters.hpp"
#include "training/weights/hf_config.hpp"
#include "training/weights/hf_tensors.hpp"
#include "training/weights/model_files.hpp"
#include "training/weights/tensor_folder.hpp"

/// Weights of a model in Hugging Face's format, by the parameters of the engine. Both rotate elements i and i
/// + head_dim / 2 of a head together and store matrices as (out features, in features), so values go in and
/// out as they lie; only names differ, and which tensors are one.
namespace annulus::weights {

/// A folder with config.json and safetensors, of which every part can be read alone. Several threads may read
/// at once.
class HfWeights {
 public:
  /// Opens the folder. Throws Error, one line that names file and tensor or key, when the engine does not
  /// compute the model, and when tensors are missing, of another shape or type than float, or unknown.
  explicit HfWeights(const std::filesystem::path& folder);

  const HfConfig& config() const { return config_; }
  const model::ParameterMap& map() const { return map_; }
  const TensorFolder& tensors() const { return tensors_; }
  /// Names of tensors that are not of the text: those of what sees images.
  const std::vector<std::string>& left_out() const { return left_out_; }

  /// The type that holds all weights exactly: f32, bf16 or f16.
  DType type() const { return type_; }

  /// Elements of the flat buffer from `begin` on. Throws Error when one is not finite.
  void read(std::int64_t begin, std::span<float> values) const;

 private:
  void require_known_tensors();
  void require_equal(const TensorFolder::Location& a, const TensorFolder::Location& b) const;

  HfConfig config_;
  model::ParameterMap map_;
  std::vector<HfTensor> layout_;  // of map_, with the names of this folder
  TensorFolder tensors_;
  std::vector<TensorFolder::Location> places_;  // of layout_
  std::string head_name_;                       // of the LM head, which may stand beside a tied embedding
  std::vector<std::string> left_out_;
  DType type_ = DType::f32;
};

/// What writes a folder needs to know.
struct HfExport {
  HfConfig config;
  DType type = DType::bf16;                            ///< of the tensors: f32, bf16 or f16
  ModelFiles files{};                                  ///< their token ids are those of config.json
  std::uint64_t shard_bytes = std::uint64_t{5} << 30;  ///< of a file, unless one tensor has more
  /// Gives elements of the flat buffer from `begin` on.
  std::function<void(std::int64_t begin, std::span<float> values)> read;
};
/// Writes config.json, safetensors and files into `folder`, which is made; config.json comes last. Tensors
/// have the shapes of the engine's parameters; values are rounded to nearest. Throws Error when the folder
/// holds weights already, and when a value is no finite number of the type.
void write_hf_folder(const std::filesystem::path& folder, const HfExport& what);

}  // namespace annulus::weights
