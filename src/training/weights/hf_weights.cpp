#include "training/weights/hf_weights.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>

#include <annulus/base/error.hpp>

#include "training/io/json.hpp"

namespace annulus::weights {

namespace {

constexpr std::uint64_t piece_bytes = std::uint64_t{4} << 20;  // read at a time

bool is_float(const std::optional<DType>& type) {
  return type == DType::f32 || type == DType::bf16 || type == DType::f16;
}

// Reads elements of a 16-bit type into floats.
template <class T>
void read_widened(const TensorFolder::Location& place, std::uint64_t first, std::span<float> values) {
  std::vector<T> stored(std::min<std::uint64_t>(values.size(), piece_bytes / sizeof(T)));
  while (!values.empty()) {
    const std::size_t count = std::min(values.size(), stored.size());
    place.file->read(*place.tensor, first, std::span<T>(stored).first(count));
    std::copy_n(stored.begin(), count, values.begin());
    first += count;
    values = values.subspan(count);
  }
}

void read_floats(const TensorFolder::Location& place, std::uint64_t first, std::span<float> values) {
  if (*place.tensor->dtype == DType::bf16) return read_widened<bfloat16>(place, first, values);
  if (*place.tensor->dtype == DType::f16) return read_widened<float16>(place, first, values);
  place.file->read(*place.tensor, first, values);
}

/// What stands before the names of a model inside of one that sees images: as versions of transformers and
/// models write it.
constexpr std::array<std::string_view, 2> text_parts{"language_model.", "model.language_model."};

/// The name of a tensor of the text inside of such a model.
std::string inside(std::string_view text_part, const std::string& name) {
  constexpr std::string_view model = "model.";
  const bool of_model = name.starts_with(model);
  if (text_part == text_parts[0]) return std::string(text_part) + name;
  return of_model ? std::string(text_part) + name.substr(model.size()) : name;
}

/// Whether a tensor is of what sees images.
bool is_of_images(std::string_view name) {
  constexpr std::string_view model = "model.";
  if (name.starts_with(model)) name.remove_prefix(model.size());
  return name.starts_with("vision_tower.") || name.starts_with("multi_modal_projector.");
}

/// Whether a tensor follows from config.json: the inverse frequencies, which old versions of transformers
/// saved.
bool is_derived(std::string_view name) {
  return name.starts_with("model.layers.") && name.ends_with(".self_attn.rotary_emb.inv_freq");
}

}  // namespace

HfWeights::HfWeights(const std::filesystem::path& folder)
    : config_(read_hf_config(folder)),
      map_(config_.shape),
      layout_(hf_tensors(map_, *find_family(config_.family))),
      tensors_(folder) {
  head_name_ = "lm_head.weight";
  if (config_.beside_images) {
    const auto part = std::ranges::find_if(text_parts, [&](std::string_view text_part) {
      return bool(tensors_.find(inside(text_part, layout_.front().name)));
    });
    if (part != text_parts.end()) {
      for (HfTensor& tensor : layout_) tensor.name = inside(*part, tensor.name);
      head_name_ = inside(*part, head_name_);
    }
  }
  std::map<DType, int> types;
  for (const HfTensor& tensor : layout_) {
    const TensorFolder::Location place = tensors_.find(tensor.name);
    require(bool(place),
            "'{}' holds no tensor {}, which the model of its config.json has: copy or write the folder again",
            folder.string(), io::shown(tensor.name));
    require(place.tensor->extents == tensor.extents(),
            "'{}': tensor {} has shape ({}), by config.json it is ({}): give the files of one model",
            place.file->path(), io::shown(tensor.name), fmt::join(place.tensor->extents, ", "),
            fmt::join(tensor.extents(), ", "));
    require(is_float(place.tensor->dtype), "'{}': tensor {} is {}: give weights in F32, BF16 or F16",
            place.file->path(), io::shown(tensor.name), place.tensor->type);
    ++types[*place.tensor->dtype];
    places_.push_back(place);
  }
  type_ = types.size() == 1 ? types.begin()->first : DType::f32;
  require_known_tensors();
}

void HfWeights::require_known_tensors() {
  std::vector<std::string_view> known;
  for (const TensorFolder::Location& place : places_) known.push_back(place.tensor->name);
  std::sort(known.begin(), known.end());
  for (const TensorFolder::Location& place : tensors_.all()) {
    const std::string& name = place.tensor->name;
    if (std::binary_search(known.begin(), known.end(), name) || is_derived(name)) continue;
    if (config_.shape.tied && name == head_name_) {
      require_equal(place, places_.front());
    } else if (config_.beside_images && is_of_images(name)) {
      left_out_.push_back(name);
    } else {
      fail("'{}': tensor {} is none of the model that config.json describes: give the files of one model",
           place.file->path(), io::shown(name));
    }
  }
}

void HfWeights::require_equal(const TensorFolder::Location& a, const TensorFolder::Location& b) const {
  bool equal = a.tensor->type == b.tensor->type && a.tensor->extents == b.tensor->extents;
  std::vector<std::byte> of_a(piece_bytes), of_b(piece_bytes);
  for (std::uint64_t at = 0; equal && at < a.tensor->bytes(); at += piece_bytes) {
    const auto count = static_cast<std::size_t>(std::min(piece_bytes, a.tensor->bytes() - at));
    a.file->read_bytes(*a.tensor, at, 1, std::span(of_a).first(count));
    b.file->read_bytes(*b.tensor, at, 1, std::span(of_b).first(count));
    equal = std::memcmp(of_a.data(), of_b.data(), count) == 0;
  }
  require(equal,
          "'{}': tensor {} is not tensor {}, although tie_word_embeddings is true: correct config.json",
          a.file->path(), io::shown(a.tensor->name), io::shown(b.tensor->name));
}

void HfWeights::read(std::int64_t begin, std::span<float> values) const {
  while (!values.empty()) {
    const auto behind = std::ranges::upper_bound(layout_, begin, {}, &HfTensor::begin);
    const auto index = static_cast<std::size_t>(behind - layout_.begin() - 1);
    const HfTensor& tensor = layout_[index];
    const TensorFolder::Location& place = places_[index];
    const std::int64_t first = begin - tensor.begin;
    const auto part = values.first(
        static_cast<std::size_t>(std::min<std::int64_t>(tensor.size() - first, std::ssize(values))));
    read_floats(place, static_cast<std::uint64_t>(first), part);
    require(std::all_of(part.begin(), part.end(), [](float value) { return std::isfinite(value); }),
            "'{}': tensor {} holds numbers that are not finite: copy the file again", place.file->path(),
            io::shown(place.tensor->name));
    begin += std::ssize(part);
    values = values.subspan(part.size());
  }
}

}  // namespace annulus::weights
