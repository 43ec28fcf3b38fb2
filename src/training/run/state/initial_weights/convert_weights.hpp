#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include <annulus/base/dtype.hpp>

#include "training/run/state/initial_weights/weight_source.hpp"

/// Weights of one format written in another, piece by piece: memory does not grow with the model. The folder
/// is there when all of it is (io::NewFolder), or Error names it. `seen` gets the elements done so far.
namespace annulus::training {

using Seen = std::function<void(std::int64_t elements)>;

/// A checkpoint of step 0, without moments yet (zeros). Its configuration has the keys of the model,
/// attention.mask, train.dtype, and data.sequence_length where the model says its positions. The model's
/// other files (weights::ModelFiles) are kept in it.
void write_as_checkpoint(const WeightSource& from, const std::filesystem::path& folder,
                         const Seen& seen = {});

/// What a model in Hugging Face's format has beside its weights.
struct HfChoices {
  std::optional<DType> dtype;  ///< f32, bf16 or f16; none: ModelDescription::dtype
  std::string family = {};     ///< model_type; empty: that of the files, else the first that fits (family_of)
  std::int64_t positions = 0;  ///< max_position_embeddings; 0: ModelDescription::positions
};
/// The type of weights that they stand for.
DType export_type(const HfChoices& choices, const ModelDescription& model);

/// config.json of a model with the files that are kept with its checkpoint. Throws Error, naming `origin` or
/// the files, for masks and layers that no type of model of transformers' has, and for a type of `choices`
/// that the model is not.
weights::HfConfig config_of_export(const ModelDescription& model, const weights::ModelFiles& files,
                                   const HfChoices& choices, const std::string& origin);

/// A model in Hugging Face's format, with the files that are kept with the checkpoint. A warning in the log
/// says where there are none, and where older versions of transformers would compute other rotary positions.
/// Throws Error for masks that it has no words for, and for kept files that are damaged.
void write_as_hf(const WeightSource& from, const HfChoices& choices, const std::filesystem::path& folder,
                 const Seen& seen = {});

}  // namespace annulus::training
