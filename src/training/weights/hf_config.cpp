#include "training/weights/hf_config.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include <fmt/ranges.h>

#include <annulus/base/error.hpp>

#include "attention/sequence/mask_terms.hpp"
#include "base/parse_number.hpp"
#include "training/io/atomic.hpp"
#include "training/weights/config_reader.hpp"
#include "training/weights/hf_rope.hpp"

namespace annulus::weights {

using Json = nlohmann::json;

namespace {

/// What transformers takes where config.json says nothing.
struct Family {
  const char* name;          // model_type
  const char* architecture;  // the one that predicts tokens
  std::int64_t kv_heads;     // 0: as many as query heads
  int head_dim;              // 0: hidden_size / num_attention_heads
  std::int64_t sliding_window;
  bool qkv_bias, qk_norm;
  bool switches_windows;  // use_sliding_window, and max_window_layers: how many layers have none
  bool mixes_layers;      // layers with and without a window
};
constexpr Family llama{"llama", "LlamaForCausalLM", 0, 0, 0, false, false, false, false},
    mistral{"mistral", "MistralForCausalLM", 8, 0, 4096, false, false, false, false},
    ministral{"ministral", "MinistralForCausalLM", 8, 0, 4096, false, false, false, true},
    qwen2{"qwen2", "Qwen2ForCausalLM", 32, 0, 4096, true, false, true, true},
    qwen3{"qwen3", "Qwen3ForCausalLM", 32, 128, 4096, false, true, true, true};
constexpr std::array families{llama, mistral, ministral, qwen2, qwen3};

// Keys that say nothing about what the model computes for given tokens.
constexpr std::array harmless{
    "_name_or_path", "_attn_implementation_autoset", "unk_token_id", "initializer_range", "use_cache",
    "pretraining_tp", "transformers_version", "torch_dtype", "dtype", "architectures", "model_type",
    "auto_map", "id2label", "label2id", "task_specific_params", "return_dict", "output_attentions",
    "output_hidden_states", "tokenizer_class",
    // How text is generated, which old versions say here.
    "max_length", "min_length", "do_sample", "temperature", "top_k", "top_p", "num_beams",
    "repetition_penalty",
    // Written by LLaMA 1, SmolLM2 and copies of models by unsloth.
    "max_sequence_length", "is_llama_config", "transformers.js_config", "unsloth_fixed", "unsloth_version"};

/// Takes the ids of special tokens.
TokenIds token_ids_of(ConfigReader& reader, const Json& json) {
  const auto is_id = [](const Json& value) { return value.is_number_integer(); };
  TokenIds ids;
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    const auto found = json.find(key);
    if (found == json.end()) continue;
    reader.take(key);
    if (!found->is_null() && !is_id(*found) &&
        !(found->is_array() && std::all_of(found->begin(), found->end(), is_id)))
      reader.refuse(key, "give the id of a token, or a list of ids");
    ids[key] = found->dump();
  }
  return ids;
}

const Family& family_of(ConfigReader& reader) {
  const auto name = reader.text("model_type");
  const auto found = std::find_if(families.begin(), families.end(),
                                  [&](const Family& family) { return name && *name == family.name; });
  if (found == families.end())
    reader.refuse("model_type", "Annulus reads llama, mistral, ministral, qwen2 (Qwen2.5) and qwen3");
  if (const Json* architectures = reader.take("architectures")) {
    if (*architectures != Json::array({found->architecture}))
      reader.refuse("architectures", fmt::format("of this type Annulus reads {} alone", found->architecture));
  }
  return *found;
}

/// Keys that a query of a layer sees, itself counted, of each layer; 0: all before it.
using Windows = std::vector<std::int64_t>;

bool is_mixed(const Windows& windows) {
  return std::ranges::adjacent_find(windows, std::not_equal_to()) != windows.end();
}

/// Those of a model. Throws Error where its layers differ in more, or in more windows than one.
Windows windows_of(const HfConfig& config) {
  const model::Config& shape = config.shape;
  const std::string pattern = fmt::format("{}", fmt::join(shape.pattern, ", "));
  Windows windows;
  std::int64_t window = 0;
  for (const model::LayerKind& kind : shape.kinds()) {
    if (kind != model::LayerKind{.mask = kind.mask})
      require(shape.frequencies(kind) == shape.frequencies(),
              "model.pattern = '{}' has rotary positions of several kinds, which no type of model that is "
              "written here has",
              pattern);
    const auto term =
        kind.mask.empty() ? std::nullopt : detail::parse_mask_terms(kind.mask, "model.pattern").window;
    windows.push_back(term ? term->left + 1 : kind.mask.empty() ? config.sliding_window : 0);
    if (windows.back() == 0) continue;
    require(window == 0 || window == windows.back(),
            "model.pattern = '{}' has several windows, but config.json has one sliding_window", pattern);
    window = windows.back();
  }
  return windows;
}

/// The inverse, for layers of which some have a window.
std::vector<model::LayerKind> kinds_of(const Windows& windows) {
  std::vector<model::LayerKind> kinds;
  for (const std::int64_t window : windows)
    kinds.push_back({.mask = window == 0 ? "causal" : fmt::format("window:{},0", window - 1)});
  return kinds;
}

/// The one of a model with these windows.
const Family& family_of(const HfConfig& config, const Windows& windows) {
  const model::Config& shape = config.shape;
  const bool qk_norm = shape.block.qk_norm == model::QkNorm::head;
  require(!shape.block.qkv_bias || !qk_norm,
          "transformers has no type of model with model.qkv_bias and model.qk_norm: it cannot be written");
  if (shape.block.qkv_bias) return qwen2;
  if (qk_norm) return qwen3;
  if (is_mixed(windows)) return ministral;
  return windows.front() != 0 ? mistral : llama;
}

/// Throws Error unless a switch of something that the engine lacks is off.
void require_off(ConfigReader& reader, const char* key, std::string_view why) {
  if (const Json* value = reader.take(key))
    if (*value != Json(false) && *value != Json(0) && *value != Json(0.0)) reader.refuse(key, why);
}

std::optional<DType> dtype_of(ConfigReader& reader) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const auto name = reader.text(key);
    if (!name) continue;
    if (*name == "float32") return DType::f32;
    if (*name == "bfloat16") return DType::bf16;
    if (*name == "float16") return DType::f16;
    reader.refuse(key, "weights are float32, bfloat16 or float16");
  }
  return std::nullopt;
}

// model::Config::check refuses more.
constexpr std::int64_t most_layers = 10'000;

/// Those that config.json says; none where it has more layers than that.
Windows windows_of(ConfigReader& reader, const Json& json, const Family& family, std::int64_t layers) {
  const bool switches = family.switches_windows;
  const bool on = switches ? reader.truth("use_sliding_window").value_or(false) : family.sliding_window != 0;
  // A key without value means none, one that is not there means the family's.
  const std::int64_t stated = reader.whole("sliding_window").value_or(0),
                     window = json.contains("sliding_window") ? stated : family.sliding_window;
  if (family.sliding_window == 0 && stated != 0)
    reader.refuse("sliding_window", "layers of this type have none: remove the key");
  const auto first = switches ? reader.number("max_window_layers").value_or(28) : 0;
  Windows windows;
  if (const Json* types = reader.take("layer_types")) {
    if (!types->is_array() || std::ssize(*types) != layers)
      reader.refuse("layer_types", fmt::format("give a list of num_hidden_layers = {} types", layers));
    for (const Json& type : *types) {
      const bool sliding = type == "sliding_attention";
      if (!sliding && type != "full_attention")
        reader.refuse("layer_types", "types of layers are full_attention and sliding_attention");
      if (sliding && (!on || window == 0))
        reader.refuse("layer_types", "there is no sliding_window in use: correct one of the two");
      windows.push_back(sliding ? window : 0);
    }
    if (is_mixed(windows) && !family.mixes_layers)
      reader.refuse("layer_types", "models of this type have layers of one kind");
    if (layers > most_layers) windows.clear();
    return windows;
  }
  for (std::int64_t i = 0; i < layers && layers <= most_layers; ++i)
    windows.push_back(on && static_cast<double>(i) >= first ? window : 0);
  return windows;
}

/// The shortest decimal number that is read as this float.
double shortest(float value) {
  return parse_number<double>(fmt::format("{}", value)).value_or(value);
}

}  // namespace

std::string HfConfig::mask() const {
  return sliding_window == 0 ? "causal" : fmt::format("window:{},0", sliding_window - 1);
}

std::int64_t sliding_window_of(std::string_view mask, const std::string& origin) {
  const detail::MaskTerms terms = detail::parse_mask_terms(mask, "attention.mask");
  require(!terms.dilated && !terms.blocks,
          "{}: models in Hugging Face's format have causal attention, or a sliding window, and not "
          "attention.mask = '{}'",
          origin, mask);
  return terms.window ? terms.window->left + 1 : 0;
}

HfConfig parse_hf_config(std::string_view text, const std::string& origin) {
  const Json json = io::parse_json_object(text, origin);
  ConfigReader reader(json, origin);
  const Family& family = family_of(reader);
  HfConfig config;
  config.family = family.name;
  config.dtype = dtype_of(reader);

  model::Config& shape = config.shape;
  shape.block.qkv_bias = family.qkv_bias;
  if (family.qk_norm) shape.block.qk_norm = model::QkNorm::head;
  shape.vocabulary = reader.required_whole("vocab_size");
  shape.hidden = static_cast<int>(reader.required_whole("hidden_size"));
  shape.ffn = static_cast<int>(reader.required_whole("intermediate_size"));
  shape.layers = static_cast<int>(reader.required_whole("num_hidden_layers"));
  shape.heads = static_cast<int>(reader.required_whole("num_attention_heads"));
  shape.kv_heads = static_cast<int>(
      reader.whole("num_key_value_heads").value_or(family.kv_heads == 0 ? shape.heads : family.kv_heads));
  if (const auto head_dim = reader.whole("head_dim")) {
    shape.head_dim = static_cast<int>(*head_dim);
  } else {
    shape.head_dim = family.head_dim == 0 ? shape.hidden / shape.heads : family.head_dim;
    if (family.head_dim == 0 && shape.hidden % shape.heads != 0)
      reader.refuse("hidden_size", "num_attention_heads does not divide it, and there is no head_dim");
  }
  shape.norm_epsilon = static_cast<float>(reader.number("rms_norm_eps").value_or(1e-6));
  shape.tied = reader.truth("tie_word_embeddings").value_or(false);
  config.positions = reader.whole("max_position_embeddings").value_or(0);
  const Windows windows = windows_of(reader, json, family, shape.layers);
  if (is_mixed(windows))
    shape.pattern = model::pattern_of(kinds_of(windows));
  else if (!windows.empty())
    config.sliding_window = windows.front();

  const std::string activation = reader.text("hidden_act").value_or("silu");
  if (activation != "silu" && activation != "swish")
    reader.refuse("hidden_act", "the activation is silu alone");
  require_off(reader, "attention_bias", "biases of the products of attention are not supported");
  require_off(reader, "mlp_bias", "biases of the SwiGLU are not supported");
  require_off(reader, "attention_dropout", "dropout is not supported: set it to 0");
  require_off(reader, "use_mrope", "rotary positions of images are not supported");
  require_off(reader, "rope_interleaved", "elements of a head are rotated with those half a head away");
  if (reader.take("quantization_config"))
    reader.refuse("quantization_config",
                  "quantized weights are not supported: give those that they were made from");
  if (reader.take("is_encoder_decoder") != nullptr && json["is_encoder_decoder"] != Json(false))
    reader.refuse("is_encoder_decoder", "models that predict tokens from those before alone are supported");
  read_rope(reader, origin, config);
  config.token_ids = token_ids_of(reader, json);
  for (const char* key : harmless) reader.take(key);
  reader.require_all_taken();
  try {
    shape.check();
  } catch (const Error& error) {
    fail("'{}': {}", origin, error.what());
  }
  return config;
}

HfConfig read_hf_config(const std::filesystem::path& folder) {
  const std::string path = (folder / "config.json").string();
  return parse_hf_config(read_text(path, kinds::model_config), path);
}

TokenIds parse_token_ids(std::string_view text, const std::string& origin) {
  const Json json = io::parse_json_object(text, origin);
  ConfigReader reader(json, origin);
  TokenIds ids = token_ids_of(reader, json);
  reader.require_all_taken();
  return ids;
}

std::string to_text(const TokenIds& ids) {
  Json json = Json::object();
  for (const auto& [key, text] : ids) json[key] = Json::parse(text);
  return json.dump() + "\n";
}

std::string older_yarn(const model::RopeScaling& rope, std::int64_t positions) {
  if (rope.scale() != model::RopeScale::yarn || positions == 0) return {};
  const double length = rope.factor * static_cast<double>(rope.original_length);
  if (std::abs(length - static_cast<double>(positions)) < 1) return {};
  return fmt::format(
      "model.rope_factor · model.rope_original_length = {} · {} = {} tokens, but max_position_embeddings of "
      "an "
      "export is {}, over which transformers before 4.56 computes another factor, {}: set the one or the "
      "other "
      "(annulus-weights export --positions)",
      rope.factor, rope.original_length, length, positions,
      static_cast<double>(positions) / static_cast<double>(rope.original_length));
}

std::string to_hf_config(const HfConfig& config, DType dtype) {
  const model::Config& shape = config.shape;
  const Windows windows = windows_of(config);
  const Family& family = family_of(config, windows);
  const std::int64_t window = std::ranges::max(windows);
  nlohmann::ordered_json json;
  json["architectures"] = {family.architecture};
  json["model_type"] = family.name;
  json["attention_dropout"] = 0.0;
  if (&family == &llama || &family == &qwen3) json["attention_bias"] = false;
  if (&family == &llama) json["mlp_bias"] = false;
  for (const auto& [key, text] : config.token_ids) json[key] = Json::parse(text);
  json["head_dim"] = shape.head_dim;
  json["hidden_act"] = "silu";
  json["hidden_size"] = shape.hidden;
  json["intermediate_size"] = shape.ffn;
  if (config.positions > 0) json["max_position_embeddings"] = config.positions;
  json["num_attention_heads"] = shape.heads;
  json["num_hidden_layers"] = shape.layers;
  json["num_key_value_heads"] = shape.kv_heads;
  json["rms_norm_eps"] = shortest(shape.norm_epsilon);
  write_rope(config, shortest(shape.rope_theta), json);
  if (family.switches_windows) {
    json["use_sliding_window"] = window != 0;
    json["max_window_layers"] =
        window == 0 ? shape.layers : std::ranges::find(windows, window) - windows.begin();
  }
  if (is_mixed(windows))
    for (const std::int64_t of_layer : windows)
      json["layer_types"].push_back(of_layer == 0 ? "full_attention" : "sliding_attention");
  if (window != 0) json["sliding_window"] = window;
  json["tie_word_embeddings"] = shape.tied;
  json["torch_dtype"] = dtype == DType::f32 ? "float32" : dtype == DType::bf16 ? "bfloat16" : "float16";
  json["vocab_size"] = shape.vocabulary;
  return json.dump(2) + "\n";
}

}  // namespace annulus::weights
