#include "training/weights/hf_config.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include <fmt/ranges.h>

#include <annulus/base/error.hpp>

#include "attention/sequence/mask_terms.hpp"
#include "training/io/atomic.hpp"
#include "training/weights/config_reader.hpp"
#include "training/weights/families.hpp"
#include "training/weights/hf_rope.hpp"

namespace annulus::weights {

using Json = nlohmann::json;

namespace {

// Keys that say nothing about what the model computes for given tokens.
constexpr std::array harmless{
    "_name_or_path", "_attn_implementation", "_attn_implementation_autoset", "unk_token_id",
    "initializer_range", "use_cache", "pretraining_tp", "transformers_version", "torch_dtype", "dtype",
    "architectures", "model_type", "auto_map", "id2label", "label2id", "task_specific_params", "return_dict",
    "output_attentions", "output_hidden_states", "tokenizer_class", "cache_implementation",
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
  const Family* const family = name ? find_family(*name) : nullptr;
  if (family == nullptr) {
    std::string known;
    for (const Family& one : families()) known += fmt::format("{}{}", known.empty() ? "" : ", ", one.name);
    reader.refuse("model_type", "Annulus reads " + known);
  }
  if (const Json* architectures = reader.take("architectures")) {
    if (*architectures != Json::array({family->architecture}))
      reader.refuse("architectures",
                    fmt::format("of this type Annulus reads {} alone", family->architecture));
  }
  return *family;
}

bool is_mixed(const Windows& windows) {
  return std::ranges::adjacent_find(windows, std::not_equal_to()) != windows.end();
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

/// Whether layers have rotary positions, of each.
std::vector<bool> rotated_layers(ConfigReader& reader, const Family& family, std::int64_t layers) {
  std::vector<bool> rotated(static_cast<std::size_t>(layers), true);
  if (!family.may_lack_rope) return rotated;
  const std::int64_t interval = reader.whole("no_rope_layer_interval").value_or(4);
  for (std::int64_t i = interval - 1; i < layers; i += interval) rotated[static_cast<std::size_t>(i)] = false;
  const Json* const listed = reader.take("no_rope_layers");  // 1 means rotary positions
  if (listed == nullptr) return rotated;
  const auto is_choice = [](const Json& value) { return value == Json(0) || value == Json(1); };
  if (!listed->is_array() || std::ssize(*listed) < layers || !std::ranges::all_of(*listed, is_choice))
    reader.refuse("no_rope_layers",
                  fmt::format("give a list of num_hidden_layers = {} ones and zeros", layers));
  for (std::size_t i = 0; i < rotated.size(); ++i) rotated[i] = (*listed)[i] == Json(1);
  return rotated;
}

/// Windows that config.json says.
Windows windows_of(ConfigReader& reader, const Json& json, const Family& family,
                   const std::vector<bool>& rotated) {
  const bool switched = family.rule == WindowRule::switched || family.rule == WindowRule::without_rope,
             on = switched ? reader.truth("use_sliding_window").value_or(false)
                           : family.rule != WindowRule::none;
  // A key without value means none, one that is not there means the family's.
  const std::int64_t stated = reader.whole("sliding_window").value_or(0),
                     window = json.contains("sliding_window") ? stated : family.sliding_window;
  if (family.rule == WindowRule::none && stated != 0)
    reader.refuse("sliding_window", "layers of this type have none: remove the key");
  // Gemma 2 9B says it twice.
  if (const auto again = reader.whole("sliding_window_size"); again && *again != window)
    reader.refuse("sliding_window_size", "sliding_window says something else: remove one");
  const double first = switched ? reader.number("max_window_layers").value_or(28) : 0;
  std::int64_t period = family.period;
  if (!family.period_key.empty())
    for (const std::string& key : {std::string(family.period_key), "_" + std::string(family.period_key)})
      period = reader.whole(key.c_str()).value_or(period);
  const auto layers = std::ssize(rotated);
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
    if (is_mixed(windows) && !family.mixes_layers())
      reader.refuse("layer_types", "models of this type have layers of one kind");
    return windows;
  }
  const auto slides = [&](std::int64_t layer) {
    switch (family.rule) {
      case WindowRule::switched:
        return static_cast<double>(layer) >= first;
      case WindowRule::without_rope:
        return !rotated[static_cast<std::size_t>(layer)];
      case WindowRule::but_each_nth:
        return (layer + 1) % period != 0;
      default:
        return true;
    }
  };
  for (std::int64_t i = 0; i < layers; ++i) windows.push_back(on && slides(i) ? window : 0);
  return windows;
}

/// Sets what the layers of a model are, and its rotary positions.
void read_layers(ConfigReader& reader, const Json& json, const std::string& origin, const Family& family,
                 HfConfig& config) {
  model::Config& shape = config.shape;
  if (shape.layers > model::most_layers)
    reader.refuse("num_hidden_layers", fmt::format("at most {} are supported", model::most_layers));
  const std::vector<bool> rotated = rotated_layers(reader, family, shape.layers);
  const Windows windows = windows_of(reader, json, family, rotated);
  const Ropes ropes = read_ropes(reader, origin, family, config.positions);
  std::vector<model::LayerKind> kinds;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    model::LayerKind kind{.mask = "causal", .rotated = rotated[i]};
    if (windows[i] != 0) {
      kind.mask = fmt::format("window:{},0", windows[i] - 1);
      if (kind.rotated && ropes.of_windows.theta != ropes.model.theta)
        kind.rope_theta = ropes.of_windows.theta;
      if (kind.rotated) kind.scaled = family.window_rope == WindowRope::same;
    }
    kinds.push_back(std::move(kind));
  }
  const bool alike = std::ranges::adjacent_find(kinds, std::not_equal_to()) == kinds.end();
  const Rope& of_model = alike && windows.front() != 0 ? ropes.of_windows : ropes.model;
  shape.rope_theta = of_model.theta;
  shape.rope = of_model.scaling;
  shape.rope_fraction = ropes.fraction;
  if (alike && rotated.front())
    config.sliding_window = windows.front();
  else
    shape.pattern = model::pattern_of(kinds);
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

namespace {

/// The text part of a model that sees images, as config.json of a model of text alone.
Json text_part(const Json& json, const std::string& origin) {
  ConfigReader reader(json, origin);
  reader.take("model_type");
  if (const Json* architectures = reader.take("architectures"))
    if (*architectures != Json::array({"Gemma3ForConditionalGeneration"}))
      reader.refuse("architectures", "of this type Annulus reads Gemma3ForConditionalGeneration alone");
  const Json* const inside = reader.take("text_config");
  if (inside == nullptr || !inside->is_object()) reader.refuse("text_config", "give the one of the model");
  Json text = *inside;
  if (text.value("model_type", Json("gemma3_text")) != Json("gemma3_text"))
    reader.refuse("text_config", "its model_type must be gemma3_text");
  text["model_type"] = "gemma3_text";
  text.erase("architectures");
  // Said outside, for all parts.
  for (const char* key : {"dtype", "torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id",
                          "tie_word_embeddings", "quantization_config"})
    if (const auto found = json.find(key); found != json.end()) {
      reader.take(key);
      if (!text.contains(key)) text[key] = *found;
    }
  for (const char* key :
       {"vision_config", "mm_tokens_per_image", "boi_token_index", "eoi_token_index", "image_token_index"})
    reader.take(key);
  for (const char* key : harmless) reader.take(key);
  reader.require_all_taken();
  return text;
}

constexpr const char *score_cap_key = "attn_logit_softcapping", *logit_cap_key = "final_logit_softcapping";

void read_caps(ConfigReader& reader, const Json& json, const Family& family, model::Config& shape) {
  const auto cap = [&](const char* key, double without) {
    const std::optional<double> value = reader.number(key);
    if (value && !family.soft_caps)
      reader.refuse(key, "models of this type have no soft caps: remove the key");
    if (value && !(*value > 0)) reader.refuse(key, "give a positive number, or null for none");
    // A key without value means none.
    return static_cast<float>(value ? *value : json.contains(key) ? 0 : without);
  };
  shape.soft_cap = cap(score_cap_key, family.soft_cap);
  shape.logit_cap = cap(logit_cap_key, family.logit_cap);
}

/// Reads the configuration of a model of text, in the form that text_part gives.
HfConfig parse_text(const Json& json, const std::string& origin) {
  ConfigReader reader(json, origin);
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"})
    require_off(reader, key, "models with experts are not supported: give one whose layers are dense");
  const Family& family = family_of(reader);
  HfConfig config;
  config.family = family.name;
  config.dtype = dtype_of(reader);

  model::Config& shape = config.shape;
  shape.block = family.block;
  const auto whole_or = [&](const char* key, std::int64_t without) {
    return without == 0 ? reader.required_whole(key) : reader.whole(key).value_or(without);
  };
  shape.vocabulary = whole_or("vocab_size", family.vocabulary);
  shape.hidden = static_cast<int>(reader.required_whole("hidden_size"));
  shape.ffn = static_cast<int>(reader.required_whole("intermediate_size"));
  shape.layers = static_cast<int>(reader.required_whole("num_hidden_layers"));
  shape.heads = static_cast<int>(whole_or("num_attention_heads", family.heads));
  shape.kv_heads = static_cast<int>(
      reader.whole("num_key_value_heads").value_or(family.kv_heads == 0 ? shape.heads : family.kv_heads));
  if (const auto head_dim = reader.whole("head_dim")) {
    shape.head_dim = static_cast<int>(*head_dim);
  } else {
    shape.head_dim = family.head_dim == 0 ? shape.hidden / shape.heads : family.head_dim;
    if (family.head_dim == 0 && shape.hidden % shape.heads != 0)
      reader.refuse("hidden_size", "num_attention_heads does not divide it, and there is no head_dim");
  }
  if (family.query_scale) {
    const auto scale = static_cast<float>(reader.number("query_pre_attn_scalar").value_or(256));
    if (!(scale > 0)) reader.refuse("query_pre_attn_scalar", "give a positive number");
    if (scale != static_cast<float>(shape.head_dim)) shape.query_scale = scale;
  }
  read_caps(reader, json, family, shape);
  shape.norm_epsilon = static_cast<float>(reader.number("rms_norm_eps").value_or(family.norm_epsilon));
  shape.tied = reader.truth("tie_word_embeddings").value_or(family.tied);
  config.positions = reader.whole("max_position_embeddings").value_or(family.positions);
  read_layers(reader, json, origin, family, config);

  const bool silu = family.block.activation == model::Activation::silu;
  for (const char* key : {"hidden_act", "hidden_activation"}) {
    const auto activation = reader.text(key);
    if (activation &&
        (silu ? *activation != "silu" && *activation != "swish" : *activation != "gelu_pytorch_tanh"))
      reader.refuse(key, silu ? "the activation is silu alone" : "the activation is gelu_pytorch_tanh alone");
  }
  require_off(reader, "attention_bias", "biases of the products of attention are not supported");
  require_off(reader, "mlp_bias", "biases of the feed-forward layer are not supported");
  for (const char* key : {"attention_dropout", "resid_pdrop", "embd_pdrop"})
    require_off(reader, key, "dropout is not supported: set it to 0");
  require_off(reader, "use_mrope", "rotary positions of images are not supported");
  require_off(reader, "rope_interleaved", "elements of a head are rotated with those half a head away");
  require_off(reader, "use_bidirectional_attention",
              "models that predict tokens from those before alone are supported");
  if (reader.take("quantization_config"))
    reader.refuse("quantization_config",
                  "quantized weights are not supported: give those that they were made from");
  if (reader.take("is_encoder_decoder") != nullptr && json["is_encoder_decoder"] != Json(false))
    reader.refuse("is_encoder_decoder", "models that predict tokens from those before alone are supported");
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

}  // namespace

HfConfig parse_hf_config(std::string_view text, const std::string& origin) {
  const Json json = io::parse_json_object(text, origin);
  const auto type = json.find("model_type");
  if (type == json.end() || *type != Json("gemma3")) return parse_text(json, origin);
  HfConfig config = parse_text(text_part(json, origin), origin);
  config.beside_images = true;
  return config;
}

HfConfig read_hf_config(const std::filesystem::path& path) {
  std::error_code error;
  const bool bare = std::filesystem::is_regular_file(path, error);
  const std::string file = (bare ? path : path / "config.json").string();
  return parse_hf_config(read_text(file, kinds::model_config), file);
}

std::string kept_text(const HfConfig& config) {
  Json json = Json::object();
  for (const auto& [key, text] : config.token_ids) json[key] = Json::parse(text);
  json["model_type"] = config.family;
  return json.dump() + "\n";
}

void take_kept(std::string_view text, const std::string& origin, HfConfig& config) {
  const Json json = io::parse_json_object(text, origin);
  ConfigReader reader(json, origin);
  config.token_ids = token_ids_of(reader, json);
  const std::string family = reader.text("model_type").value_or("");  // not there in those of older versions
  if (config.family.empty()) config.family = family;
  reader.require_all_taken();
}

std::string older_yarn(const model::RopeScaling& rope, std::int64_t positions) {
  if (rope.scale() != model::RopeScale::yarn || positions == 0) return {};
  const double length = rope.factor * static_cast<double>(rope.original_length);
  if (std::abs(length - static_cast<double>(positions)) < 1) return {};
  return fmt::format(
      "model.rope_factor · model.rope_original_length = {} · {} = {} tokens, but max_position_embeddings of "
      "an export is {}, over which transformers before 4.56 computes another factor, {}: set the one or the "
      "other (annulus-weights export --positions)",
      rope.factor, rope.original_length, length, positions,
      static_cast<double>(positions) / static_cast<double>(rope.original_length));
}

std::string to_hf_config(const HfConfig& config, DType dtype) {
  const model::Config& shape = config.shape;
  const Windows windows = windows_of(config);
  const Family& family = family_of(config);
  const std::int64_t window = std::ranges::max(windows);
  nlohmann::ordered_json json;
  json["architectures"] = {family.architecture};
  json["model_type"] = family.name;
  json["attention_dropout"] = 0.0;
  for (const char* key : family.off)
    json[key] = std::string_view(key).ends_with("_bias") ? Json(false) : Json(0.0);
  for (const auto& [key, text] : config.token_ids) json[key] = Json::parse(text);
  json["head_dim"] = shape.head_dim;
  if (shape.block.activation == model::Activation::silu)
    json["hidden_act"] = "silu";
  else
    json["hidden_activation"] = "gelu_pytorch_tanh";
  json["hidden_size"] = shape.hidden;
  json["intermediate_size"] = shape.ffn;
  if (config.positions > 0) json["max_position_embeddings"] = config.positions;
  json["num_attention_heads"] = shape.heads;
  json["num_hidden_layers"] = shape.layers;
  json["num_key_value_heads"] = shape.kv_heads;
  if (family.query_scale) {
    const double scale =
        shortest(shape.query_scale > 0 ? shape.query_scale : static_cast<float>(shape.head_dim));
    // A whole number is one, which transformers 5 insists on.
    if (scale == std::floor(scale))
      json["query_pre_attn_scalar"] = static_cast<std::int64_t>(scale);
    else
      json["query_pre_attn_scalar"] = scale;
  }
  if (family.soft_caps)
    for (const auto& [key, cap] :
         {std::pair(score_cap_key, shape.soft_cap), {logit_cap_key, shape.logit_cap}})
      json[key] = cap > 0 ? Json(shortest(cap)) : Json(nullptr);
  json["rms_norm_eps"] = shortest(shape.norm_epsilon);
  write_rope(config, family, windows, json);
  const bool switched = family.rule == WindowRule::switched || family.rule == WindowRule::without_rope;
  if (switched) json["use_sliding_window"] = window != 0;
  if (family.rule == WindowRule::switched)
    json["max_window_layers"] =
        window == 0 ? shape.layers : std::ranges::find(windows, window) - windows.begin();
  if (is_mixed(windows) || (family.mixes_layers() && family.rule != WindowRule::switched))
    for (const std::int64_t of_layer : windows)
      json["layer_types"].push_back(of_layer == 0 ? "full_attention" : "sliding_attention");
  if (family.may_lack_rope)
    for (const model::LayerKind& kind : shape.kinds()) json["no_rope_layers"].push_back(kind.rotated ? 1 : 0);
  if (window != 0) json["sliding_window"] = window;
  json["tie_word_embeddings"] = shape.tied;
  json["torch_dtype"] = dtype == DType::f32 ? "float32" : dtype == DType::bf16 ? "bfloat16" : "float16";
  json["vocab_size"] = shape.vocabulary;
  return json.dump(2) + "\n";
}

}  // namespace annulus::weights
