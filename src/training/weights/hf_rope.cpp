#include "training/weights/hf_rope.hpp"

#include <cmath>

#include "base/parse_number.hpp"

namespace annulus::weights {

using Json = nlohmann::json;

namespace {

// The part of a head that positions turn.
std::optional<double> read_fraction(ConfigReader& reader, const Family& family) {
  const char* const key = "partial_rotary_factor";
  const auto part = reader.number(key);
  if (part && *part != 1 && !family.partial_rope)
    reader.refuse(key, "positions turn every element of a head in models of this type: remove the key");
  if (part && !(*part > 0 && *part <= 1)) reader.refuse(key, "give a number above 0 and at most 1");
  return part;
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
  rope.truncate = reader.truth("truncate").value_or(true);
  const double mscale = number_or("mscale", 0), all = number_or("mscale_all_dim", 0);
  if (const auto stated = reader.number("attention_factor")) {
    if (!(*stated > 0)) reader.refuse("attention_factor", "give a positive number");
    rope.attention_factor = *stated;
  } else if (mscale != 0 && all != 0) {  // together alone
    rope.attention_factor = yarn_mscale(rope.factor, mscale) / yarn_mscale(rope.factor, all);
  }
}

/// Scaling that rope_scaling or rope_parameters asks for.
model::RopeScaling read_scaling(ConfigReader& reader, const Family& family, std::int64_t positions) {
  model::RopeScaling rope;
  // The old name is "type"; files have both.
  const auto now = reader.text("rope_type"), before = reader.text("type");
  if (now && before && *now != *before) reader.refuse("type", "rope_type says something else: remove one");
  const std::string type = now ? *now : before.value_or("default");
  if (type == "default") return rope;
  if (!family.scales_rope)
    reader.refuse(now ? "rope_type" : "type",
                  "of this type of model rotary positions without scaling are supported alone");
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

/// The settings of an object; base and fraction where it says them.
struct Settings {
  std::optional<double> theta, fraction;
  model::RopeScaling scaling;
};
Settings read_settings(const Json& json, const std::string& origin, const std::string& name,
                       const Family& family, std::int64_t positions) {
  ConfigReader reader(json, origin, name + ".");
  Settings settings{reader.number("rope_theta"), read_fraction(reader, family),
                    read_scaling(reader, family, positions)};
  reader.require_all_taken();
  return settings;
}

/// Settings of layers with a window, and of the others: rope_parameters with an object for either.
bool is_by_type(const Json* settings) {
  if (settings == nullptr || !settings->is_object()) return false;
  for (const auto& [key, value] : settings->items())
    if ((key != "full_attention" && key != "sliding_attention") || !value.is_object()) return false;
  return !settings->empty();
}

}  // namespace

Ropes read_ropes(ConfigReader& reader, const std::string& origin, const Family& family,
                 std::int64_t positions) {
  const auto outer_fraction = read_fraction(reader, family);
  if (!family.scales_rope) reader.take("original_max_position_embeddings");  // of scaling alone
  const auto outer_theta = reader.number("rope_theta"),
             outer_local = family.window_rope == WindowRope::local ? reader.number("rope_local_base_freq")
                                                                   : std::nullopt;
  const Json *const old_form = reader.take("rope_scaling"), *const new_form = reader.take("rope_parameters");
  const bool by_type = family.window_rope != WindowRope::same && is_by_type(new_form);
  if (old_form != nullptr && new_form != nullptr && !by_type && *old_form != *new_form)
    reader.refuse("rope_scaling", "rope_parameters says something else: remove one");
  const auto read = [&](const Json* json, const std::string& name) {
    if (json == nullptr) return Settings();
    if (!json->is_object()) reader.refuse(name.c_str(), "give an object");
    for (const auto& [key, value] : json->items())
      if (value.is_object()) reader.refuse(name.c_str(), "layers of several kinds are not supported");
    return read_settings(*json, origin, name, family, positions);
  };
  const std::string form = new_form != nullptr ? "rope_parameters" : "rope_scaling";
  // What two keys say, each or one of them.
  const auto one_of = [&](const char* key, std::optional<double> outer, const std::string& other,
                          std::optional<double> inner) {
    if (outer && inner && *outer != *inner)
      reader.refuse(key,
                    fmt::format("{} = {} says something else: remove one", other, io::shown(Json(*inner))));
    return inner ? inner : outer;
  };
  Settings full, windows;
  if (by_type) {
    const auto of_type = [&](const char* type) {
      const auto found = new_form->find(type);
      return found == new_form->end()
                 ? Settings()
                 : read_settings(*found, origin, fmt::format("rope_parameters.{}", type), family, positions);
    };
    full = of_type("full_attention");
    windows = of_type("sliding_attention");
    if (old_form != nullptr && read(old_form, "rope_scaling").scaling != full.scaling)
      reader.refuse("rope_scaling", "rope_parameters.full_attention says something else: remove one");
    if (windows.scaling.scale() != model::RopeScale::none)
      reader.refuse("rope_parameters",
                    "positions of layers with a window are not scaled in this type of model");
  } else {
    full = read(new_form != nullptr ? new_form : old_form, form);
    if (family.window_rope == WindowRope::same) windows.scaling = full.scaling;
  }
  const bool local = family.window_rope == WindowRope::local;
  const std::string of_full = by_type ? form + ".full_attention" : form;
  const double theta =
      one_of("rope_theta", outer_theta, of_full + ".rope_theta", full.theta).value_or(family.rope_theta);
  const double fraction =
      one_of("partial_rotary_factor", outer_fraction, of_full + ".partial_rotary_factor", full.fraction)
          .value_or(1);
  const double of_windows =
      one_of("rope_local_base_freq", outer_local, form + ".sliding_attention.rope_theta", windows.theta)
          .value_or(local ? 10000 : theta);
  if (!local && of_windows != theta)
    reader.refuse("rope_parameters", "layers of this type of model have one rope_theta");
  if (local && !(of_windows > 1)) reader.refuse("rope_local_base_freq", "give a number above 1");
  return {.model = {static_cast<float>(theta), full.scaling},
          .of_windows = {static_cast<float>(of_windows), windows.scaling},
          .fraction = fraction};
}

namespace {

/// Scaling in the words of either form.
nlohmann::ordered_json scaling_json(const model::RopeScaling& rope, double attention_factor) {
  nlohmann::ordered_json scaling;  // null: none
  const model::RopeScale scale = rope.scale();
  if (scale == model::RopeScale::none) return scaling;
  scaling["rope_type"] = rope.name;
  scaling["factor"] = rope.factor;
  if (scale == model::RopeScale::llama3) {
    scaling["low_freq_factor"] = rope.low_frequency_factor;
    scaling["high_freq_factor"] = rope.high_frequency_factor;
  }
  if (scale == model::RopeScale::yarn) {
    scaling["beta_fast"] = rope.beta_fast;
    scaling["beta_slow"] = rope.beta_slow;
    if (!rope.truncate) scaling["truncate"] = false;
    // Said in any case: versions of transformers differ in what they take it from.
    scaling["attention_factor"] = attention_factor;
  }
  if (rope.original_length > 0) scaling["original_max_position_embeddings"] = rope.original_length;
  return scaling;
}

}  // namespace

double shortest(float value) {
  return parse_number<double>(fmt::format("{}", value)).value_or(value);
}

void write_rope(const HfConfig& config, const Family& family, const Windows& windows,
                nlohmann::ordered_json& json) {
  const model::Config& shape = config.shape;
  const double theta = shortest(shape.rope_theta);
  const nlohmann::ordered_json scaling = scaling_json(shape.rope, shape.frequencies().attention_factor);
  json["rope_theta"] = theta;
  json["rope_scaling"] = scaling;
  if (family.partial_rope) json["partial_rotary_factor"] = shape.rope_fraction;
  if (family.window_rope == WindowRope::same) return;
  double of_windows = family.window_rope == WindowRope::local ? 10000 : theta;
  const std::vector<model::LayerKind> kinds = shape.kinds();
  for (std::size_t i = 0; i < kinds.size(); ++i)
    if (windows[i] != 0) of_windows = kinds[i].rope_theta > 0 ? shortest(kinds[i].rope_theta) : theta;
  if (family.window_rope == WindowRope::local) json["rope_local_base_freq"] = of_windows;
  // For transformers 5, which takes another base for layers with a window where these keys stand alone.
  nlohmann::ordered_json& by_type = json["rope_parameters"];
  by_type["full_attention"] = scaling.is_null() ? nlohmann::ordered_json{{"rope_type", "default"}} : scaling;
  by_type["full_attention"]["rope_theta"] = theta;
  by_type["sliding_attention"] = {{"rope_type", "default"}, {"rope_theta", of_windows}};
}

}  // namespace annulus::weights
