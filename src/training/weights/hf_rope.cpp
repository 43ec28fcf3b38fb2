#include "training/weights/hf_rope.hpp"

#include <cmath>

namespace annulus::weights {

using Json = nlohmann::json;

namespace {

// Rotary positions of a part of a head's elements.
void require_whole_rotation(ConfigReader& reader) {
  if (const auto part = reader.number("partial_rotary_factor"))
    if (*part != 1)
      reader.refuse("partial_rotary_factor",
                    "every element of a head is rotated: partial rotation is not supported");
}

// YaRN's attention factor from DeepSeek's pair of numbers.
double yarn_mscale(double factor, double scale) {
  return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
}

void read_yarn(ConfigReader& reader, model::RopeScaling& rope) {
  // As in transformers, 0 is what is not said.
  const auto number_or = [&](const char* key, double without) {
    const double stated = reader.number(key).value_or(0);
    return stated == 0 ? without : stated;
  };
  rope.beta_fast = number_or("beta_fast", 32);
  rope.beta_slow = number_or("beta_slow", 1);
  if (!reader.truth("truncate").value_or(true))
    reader.refuse("truncate", "the ramp between dimensions that are not whole is not supported");
  const double mscale = number_or("mscale", 0), all = number_or("mscale_all_dim", 0);
  if (const auto stated = reader.number("attention_factor")) {
    if (!(*stated > 0)) reader.refuse("attention_factor", "give a positive number");
    rope.attention_factor = *stated;
  } else if (mscale != 0 && all != 0) {  // together alone
    rope.attention_factor = yarn_mscale(rope.factor, mscale) / yarn_mscale(rope.factor, all);
  }
}

/// Scaling that rope_scaling or rope_parameters asks for.
model::RopeScaling read_scaling(ConfigReader& reader, std::int64_t positions) {
  model::RopeScaling rope;
  // The old name is "type"; files have both.
  const auto now = reader.text("rope_type"), before = reader.text("type");
  if (now && before && *now != *before) reader.refuse("type", "rope_type says something else: remove one");
  const std::string type = now ? *now : before.value_or("default");
  if (type == "default") return rope;
  rope.name = type;
  if (type != "linear" && type != "llama3" && type != "yarn")
    reader.refuse(now ? "rope_type" : "type", "known are default, linear, llama3 and yarn");
  rope.factor = reader.required_number("factor");
  if (type == "llama3") {
    rope.low_frequency_factor = reader.required_number("low_freq_factor");
    rope.high_frequency_factor = reader.required_number("high_freq_factor");
    rope.original_length = reader.required_whole("original_max_position_embeddings");
  } else if (type == "yarn") {
    rope.original_length = reader.whole("original_max_position_embeddings").value_or(positions);
    read_yarn(reader, rope);
  }
  return rope;
}

}  // namespace

void read_rope(ConfigReader& reader, const std::string& origin, HfConfig& config) {
  require_whole_rotation(reader);
  const auto outer_theta = reader.number("rope_theta");
  std::optional<double> theta = outer_theta;
  const Json *old_form = reader.take("rope_scaling"), *new_form = reader.take("rope_parameters");
  if (old_form != nullptr && new_form != nullptr && *old_form != *new_form)
    reader.refuse("rope_scaling", "rope_parameters says something else: remove one");
  const char* const name = new_form != nullptr ? "rope_parameters" : "rope_scaling";
  if (const Json* settings = new_form != nullptr ? new_form : old_form) {
    if (!settings->is_object()) reader.refuse(name, "give an object");
    for (const auto& [key, value] : settings->items())
      if (value.is_object()) reader.refuse(name, "layers of several kinds are not supported");
    ConfigReader inner(*settings, origin, std::string(name) + ".");
    require_whole_rotation(inner);
    if (const auto inside = inner.number("rope_theta")) {
      if (outer_theta && *outer_theta != *inside)
        inner.refuse("rope_theta", "another one stands outside: remove one");
      theta = inside;
    }
    config.shape.rope = read_scaling(inner, config.positions);
    inner.require_all_taken();
  }
  config.shape.rope_theta = static_cast<float>(theta.value_or(10000.0));
}

void write_rope(const HfConfig& config, double theta, nlohmann::ordered_json& json) {
  json["rope_theta"] = theta;
  const model::RopeScaling& rope = config.shape.rope;
  nlohmann::ordered_json& scaling = json["rope_scaling"];  // null: none
  const model::RopeScale scale = rope.scale();
  if (scale == model::RopeScale::none) return;
  scaling["rope_type"] = rope.name;
  scaling["factor"] = rope.factor;
  if (scale == model::RopeScale::llama3) {
    scaling["low_freq_factor"] = rope.low_frequency_factor;
    scaling["high_freq_factor"] = rope.high_frequency_factor;
  }
  if (scale == model::RopeScale::yarn) {
    scaling["beta_fast"] = rope.beta_fast;
    scaling["beta_slow"] = rope.beta_slow;
    // Said in any case: versions of transformers differ in what they take it from.
    scaling["attention_factor"] = config.shape.frequencies().attention_factor;
  }
  if (rope.original_length > 0) scaling["original_max_position_embeddings"] = rope.original_length;
}

}  // namespace annulus::weights
