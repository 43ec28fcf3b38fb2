#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <annulus/training/checkpoint/reader.hpp>
#include <annulus/training/data/tokenizer.hpp>

#include "training/model/parameters.hpp"
#include "training/run/config/model_description.hpp"
#include "training/weights/hf_weights.hpp"
#include "training/weights/model_files.hpp"

namespace annulus::training {

/// Whether `tokenizer`, which has packed data, is that of a model with these files, as far as they have one.
bool is_tokenizer_of(const data::TokenizerIdentity& tokenizer, const weights::ModelFiles& files);

/// Weights that a run can start from, or that go out as another format: a model in Hugging Face's format or a
/// checkpoint, of which every part can be read alone. Several threads may read at once.
class WeightSource {
 public:
  /// Opens it and reads no weights; `check` is of a checkpoint. Throws Error as describe_model does, and when
  /// tensors are missing, too many, or not those of the model.
  explicit WeightSource(const std::filesystem::path& path,
                        checkpoint::Checkpoint::Check check = checkpoint::Checkpoint::Check::whole);

  const ModelDescription& model() const { return model_; }
  const model::ParameterMap& map() const { return map_; }

  /// Optimizer steps that a checkpoint's run has made; 0 of a model in Hugging Face's format.
  std::int64_t step() const;

  /// What belongs to the model beside its weights; nothing where a checkpoint has none. `notes` gets lines
  /// for a log about what is there and does not go along. Throws Error that names the file when one is
  /// damaged.
  weights::ModelFiles files(std::vector<std::string>& notes) const;

  /// Tells two folders apart whose models have one shape (Fingerprint). Of a checkpoint's folder all contents
  /// count, by their checksums; of others names, types and shapes, and the first and last elements of every
  /// tensor.
  std::uint64_t fingerprint() const;

  /// Calls use(at, values) with elements [begin, begin + count) of the flat buffer, piece by piece and in
  /// order; `at` counts from 0 to count. Throws Error that names file and tensor when an element of a model
  /// is not finite, or one of a checkpoint not what its checksum says.
  using Use = std::function<void(std::int64_t at, std::span<const float> values)>;
  void read(std::int64_t begin, std::int64_t count, const Use& use) const;

  /// Reads elements [begin, begin + values.size()) into `values`.
  void read(std::int64_t begin, std::span<float> values) const;

 private:
  using Reader = std::variant<weights::HfWeights, checkpoint::Checkpoint>;
  static Reader open(const std::filesystem::path& path, WeightsFormat format,
                     checkpoint::Checkpoint::Check check);

  std::filesystem::path path_;
  ModelDescription model_;
  model::ParameterMap map_;
  Reader reader_;
};

}  // namespace annulus::training
