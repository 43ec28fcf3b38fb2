#include "training/run/state/initial_weights/weight_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/fingerprint.hpp"
#include "training/checkpoint/kept_files.hpp"
#include "training/checkpoint/manifest.hpp"
#include "training/io/crc32.hpp"
#include "training/run/saving/checkpoint_parts.hpp"

namespace annulus::training {

using checkpoint::Checkpoint;
using weights::HfWeights;

namespace {

constexpr std::int64_t elements_at_a_time = std::int64_t{1} << 20;

}  // namespace

bool is_tokenizer_of(const data::TokenizerIdentity& tokenizer, const weights::ModelFiles& files) {
  for (const std::string_view name : weights::tokenizer_models) {
    const auto found = files.find(name);
    if (found == files.end()) continue;
    const std::uint32_t crc = io::crc32_of(std::span<const char>(found->second));
    if (tokenizer.fingerprint == fmt::format("crc32:{:08x}", crc)) return true;
  }
  return std::ranges::all_of(files, [](const auto& file) {
    return file.first == weights::token_ids_file || file.first == weights::generation_file;
  });
}

WeightSource::Reader WeightSource::open(const std::filesystem::path& path, WeightsFormat format,
                                        Checkpoint::Check check) {
  if (format == WeightsFormat::hugging_face) return HfWeights(path);
  return Checkpoint(path, check);
}

WeightSource::WeightSource(const std::filesystem::path& path, Checkpoint::Check check)
    : path_(path),
      model_(describe_model(path)),
      map_(model_.shape),
      reader_(open(path, model_.format, check)) {
  if (const auto* saved = std::get_if<Checkpoint>(&reader_)) saved->require_tensors(tensors_of(map_));
}

std::int64_t WeightSource::step() const {
  const auto* saved = std::get_if<Checkpoint>(&reader_);
  return saved == nullptr ? 0 : saved->progress().step;
}

weights::ModelFiles WeightSource::files(std::vector<std::string>& notes) const {
  if (const auto* model = std::get_if<HfWeights>(&reader_)) {
    if (const std::vector<std::string>& tensors = model->left_out(); !tensors.empty())
      notes.push_back(fmt::format("'{}': {} tensors of what sees images do not go along ('{}' to '{}')",
                                  path_.string(), tensors.size(), tensors.front(), tensors.back()));
    return weights::read_model_files(path_, notes);
  }
  const std::filesystem::path folder = checkpoint::kept_files_of(path_);
  if (folder.empty()) return {};
  checkpoint::KeptFiles kept = checkpoint::read_kept_files(folder);
  if (kept.vocabulary != model_.shape.vocabulary) {
    notes.push_back(fmt::format("'{}' is of a vocabulary of {}, the model's has {}: it does not go along",
                                folder.string(), kept.vocabulary, model_.shape.vocabulary));
    return {};
  }
  std::erase_if(kept.contents, [](const auto& file) { return !weights::is_model_file(file.first); });
  return std::move(kept.contents);
}

std::uint64_t WeightSource::fingerprint() const {
  Fingerprint fingerprint;
  const auto* saved = std::get_if<Checkpoint>(&reader_);
  if (saved != nullptr) {
    fingerprint.add(saved->manifest().to_text());
    return fingerprint.value();
  }
  constexpr std::int64_t looked_at = 64;
  std::vector<float> values;
  for (const model::Parameter& tensor : map_.all()) {
    fingerprint.add(tensor.name);
    for (const std::int64_t extent : {tensor.rows, tensor.columns})
      fingerprint.add(static_cast<std::uint64_t>(extent));
    const std::int64_t count = std::min(looked_at, tensor.size());
    values.resize(static_cast<std::size_t>(count));
    for (const std::int64_t first : {std::int64_t{0}, tensor.size() - count}) {
      read(tensor.offset + first, values);
      for (const float value : values) fingerprint.add(std::uint64_t{std::bit_cast<std::uint32_t>(value)});
    }
  }
  return fingerprint.value();
}

void WeightSource::read(std::int64_t begin, std::int64_t count, const Use& use) const {
  if (const auto* saved = std::get_if<Checkpoint>(&reader_)) {
    for_each_tensor(
        map_, begin, count,
        [&](const model::Parameter& tensor, std::int64_t first, std::int64_t size, std::int64_t at) {
          saved->read(checkpoint::Buffer::parameters, tensor.name, first, size,
                      [&](std::int64_t inside, std::span<const float> values) { use(at + inside, values); });
        });
    return;
  }
  std::vector<float> values;
  for (std::int64_t at = 0; at < count; at += std::ssize(values)) {
    values.resize(static_cast<std::size_t>(std::min(elements_at_a_time, count - at)));
    std::get<HfWeights>(reader_).read(begin + at, values);
    use(at, values);
  }
}

void WeightSource::read(std::int64_t begin, std::span<float> values) const {
  if (const auto* model = std::get_if<HfWeights>(&reader_)) return model->read(begin, values);
  read(begin, std::ssize(values), [&](std::int64_t at, std::span<const float> piece) {
    std::copy(piece.begin(), piece.end(), values.begin() + at);
  });
}

}  // namespace annulus::training
