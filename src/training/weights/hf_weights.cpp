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

io::Extents extents_of(const model::Parameter& parameter) {
  const auto rows = static_cast<std::uint64_t>(parameter.rows),
             columns = static_cast<std::uint64_t>(parameter.columns);
  return rows == 1 ? io::Extents{columns} : io::Extents{rows, columns};
}

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

/// Whether a tensor follows from config.json: the inverse frequencies, which old versions of transformers
/// saved.
bool is_derived(std::string_view name) {
  return name.starts_with("model.layers.") && name.ends_with(".self_attn.rotary_emb.inv_freq");
}

}  // namespace

std::string hf_name(const model::Parameter& parameter) {
  using Pair = std::pair<std::string_view, std::string_view>;
  constexpr std::array outside{Pair{"embedding", "model.embed_tokens.weight"},
                               Pair{"final_norm", "model.norm.weight"}, Pair{"lm_head", "lm_head.weight"}};
  constexpr std::array of_layer{Pair{"attention_norm", "input_layernorm.weight"},
                                Pair{"attention.query", "self_attn.q_proj.weight"},
                                Pair{"attention.key", "self_attn.k_proj.weight"},
                                Pair{"attention.value", "self_attn.v_proj.weight"},
                                Pair{"attention.query_bias", "self_attn.q_proj.bias"},
                                Pair{"attention.key_bias", "self_attn.k_proj.bias"},
                                Pair{"attention.value_bias", "self_attn.v_proj.bias"},
                                Pair{"attention.query_norm", "self_attn.q_norm.weight"},
                                Pair{"attention.key_norm", "self_attn.k_norm.weight"},
                                Pair{"attention.out", "self_attn.o_proj.weight"},
                                Pair{"ffn_norm", "post_attention_layernorm.weight"},
                                Pair{"ffn.gate", "mlp.gate_proj.weight"},
                                Pair{"ffn.up", "mlp.up_proj.weight"},
                                Pair{"ffn.down", "mlp.down_proj.weight"}};
  const std::string_view name = parameter.name;
  for (const auto& [ours, theirs] : outside)
    if (name == ours) return std::string(theirs);
  constexpr std::string_view prefix = "layers.";
  const std::size_t dot = name.starts_with(prefix) ? name.find('.', prefix.size()) : name.npos;
  if (dot != name.npos) {
    for (const auto& [ours, theirs] : of_layer)
      if (name.substr(dot + 1) == ours) return fmt::format("model.{}.{}", name.substr(0, dot), theirs);
  }
  fail("transformers has no name for the parameter '{}'", name);
}

HfWeights::HfWeights(const std::filesystem::path& folder)
    : config_(read_hf_config(folder)), map_(config_.shape), tensors_(folder) {
  std::map<DType, int> types;
  for (const model::Parameter& parameter : map_.all()) {
    const std::string name = hf_name(parameter);
    const TensorFolder::Location place = tensors_.find(name);
    require(bool(place),
            "'{}' holds no tensor {}, which the model of its config.json has: copy or write the folder again",
            folder.string(), io::shown(name));
    require(place.tensor->extents == extents_of(parameter),
            "'{}': tensor {} has shape ({}), by config.json it is ({}): give the files of one model",
            place.file->path(), io::shown(name), fmt::join(place.tensor->extents, ", "),
            fmt::join(extents_of(parameter), ", "));
    require(is_float(place.tensor->dtype), "'{}': tensor {} is {}: give weights in F32, BF16 or F16",
            place.file->path(), io::shown(name), place.tensor->type);
    ++types[*place.tensor->dtype];
    places_.push_back(place);
  }
  type_ = types.size() == 1 ? types.begin()->first : DType::f32;
  require_known_tensors();
}

void HfWeights::require_known_tensors() const {
  std::vector<std::string_view> known;
  for (const TensorFolder::Location& place : places_) known.push_back(place.tensor->name);
  std::sort(known.begin(), known.end());
  for (const TensorFolder::Location& place : tensors_.all()) {
    const std::string& name = place.tensor->name;
    if (std::binary_search(known.begin(), known.end(), name) || is_derived(name)) continue;
    if (config_.shape.tied && name == "lm_head.weight") {
      require_equal(place, places_.front());
      continue;
    }
    fail("'{}': tensor {} is none of the model that config.json describes: give the files of one model",
         place.file->path(), io::shown(name));
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
    const model::Parameter& parameter = map_.at(begin);
    const TensorFolder::Location& place = places_[static_cast<std::size_t>(&parameter - map_.all().data())];
    const std::int64_t first = begin - parameter.offset;
    const auto part = values.first(
        static_cast<std::size_t>(std::min<std::int64_t>(parameter.size() - first, std::ssize(values))));
    read_floats(place, static_cast<std::uint64_t>(first), part);
    require(std::all_of(part.begin(), part.end(), [](float value) { return std::isfinite(value); }),
            "'{}': tensor {} holds numbers that are not finite: copy the file again", place.file->path(),
            io::shown(place.tensor->name));
    begin += std::ssize(part);
    values = values.subspan(part.size());
  }
}

}  // namespace annulus::weights
