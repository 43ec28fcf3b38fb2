#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <annulus/base/dtype.hpp>
#include <annulus/training/model/config.hpp>

namespace annulus::weights {

/// Ids of special tokens as config.json has them: JSON texts ("2", "[2,3]", "null") by the keys bos_token_id,
/// eos_token_id and pad_token_id, of those keys that it has.
using TokenIds = std::map<std::string, std::string>;

/// What the config.json of a model in Hugging Face's format says.
struct HfConfig {
  std::string family;          ///< "llama", "qwen3" and others (Family, the model_type); empty: not known
  model::Config shape;         ///< with rope settings of either form; the block is that of the family
  bool beside_images = false;  ///< the text part of a model that sees images
  std::int64_t positions = 0;  ///< max_position_embeddings: the longest sequence it is meant for; 0: not said
  std::optional<DType> dtype;  ///< that the weights are said to have
  /// Keys that a query of any layer sees, itself counted; 0: all before it, or what shape.pattern says.
  std::int64_t sliding_window = 0;
  TokenIds token_ids;  ///< nothing that the engine computes depends on them

  /// The mask of attention that layers share: "causal", or "window:L,0" with a sliding window.
  std::string mask() const;
};

/// The inverse of HfConfig::mask, of attention.mask of a run: HfConfig::sliding_window. Documents, which are
/// how sequences are packed, count for nothing. Throws Error naming `origin` for masks that config.json has
/// no words for.
std::int64_t sliding_window_of(std::string_view mask, const std::string& origin);

/// Reads config.json. Everything that changes what a model computes is honoured, or refused by an Error, one
/// line that names `origin`, the key and what to do: other architectures, biases of other products, types
/// of layers beside full and sliding attention, activations and partial rotary positions that the type has
/// not, quantized weights, and keys that nobody here knows.
HfConfig parse_hf_config(std::string_view text, const std::string& origin);

/// Reads the config.json of a folder, or such a file by any name.
HfConfig read_hf_config(const std::filesystem::path& path);

/// What checkpoints do not say and exports need, as a JSON object: the ids of special tokens, and the family
/// as model_type.
std::string kept_text(const HfConfig& config);
/// Takes it back: the ids, and the family where `config` has none. Throws Error as parse_hf_config.
void take_kept(std::string_view text, const std::string& origin, HfConfig& config);

/// What transformers before 4.56 would compute otherwise: with YaRN they take positions over the original
/// length for the factor. One line with a remedy; empty where they agree.
std::string older_yarn(const model::RopeScaling& rope, std::int64_t positions);

/// config.json of a model as transformers 4 and 5 load it, of the family that it is (family_of). `dtype`: of
/// the weights. Throws Error that says what no type of model of transformers' has.
std::string to_hf_config(const HfConfig& config, DType dtype);

}  // namespace annulus::weights
