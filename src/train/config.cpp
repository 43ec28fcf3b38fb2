#include <annulus/train/config.hpp>

#include <fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <toml++/toml.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <sstream>
#include <type_traits>
#include <utility>

#include <annulus/base/error.hpp>
#include <annulus/comm/sums.hpp>
#include <annulus/plan/schedules.hpp>
#include <annulus/sequence/layout.hpp>
#include <annulus/sequence/mask.hpp>
#include <annulus/simulate/choose.hpp>

#include "config/parse.hpp"
#include "config/rename_keys.hpp"
#include "data/text.hpp"
#include "train/config_table.hpp"
#include "train/model_from.hpp"

namespace annulus::train {

namespace {

// "file:line", or the origin alone when there is no line.
std::string place(std::string_view origin, const toml::node& node) {
  const auto line = node.source().begin.line;
  return line > 0 ? fmt::format("{}:{}", origin, line) : std::string(origin);
}

const Key* find_key(const std::string& name) {
  for (const Key& key : config_table())
    if (name == key.name) return &key;
  return nullptr;
}

bool is_section(const std::string& name) {
  return std::any_of(config_table().begin(), config_table().end(),
                     [&](const Key& key) { return std::string_view(key.name).starts_with(name + "."); });
}

template <class T>
constexpr const char* expected_type() {
  if constexpr (std::is_same_v<T, bool>)
    return "true or false";
  else if constexpr (std::is_integral_v<T>)
    return "a whole number";
  else if constexpr (std::is_floating_point_v<T>)
    return "a number";
  else if constexpr (std::is_same_v<T, std::string>)
    return "a string";
  else
    return "a string or an array of strings";
}

// Sets `target` from a TOML value; false when the type does not fit.
template <class T>
bool assign(T& target, const toml::node& node, const std::string& name, const std::string& where) {
  if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    if (const auto text = node.value_exact<std::string>()) return target = {*text}, true;
    if (!node.is_array()) return false;
    std::vector<std::string> values;
    for (const toml::node& element : *node.as_array()) {
      const auto text = element.value_exact<std::string>();
      if (!text) return false;
      values.push_back(*text);
    }
    target = std::move(values);
  } else if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, bool>) {
    const auto value = node.value_exact<T>();
    if (!value) return false;
    target = *value;
  } else if constexpr (std::is_integral_v<T>) {
    const auto value = node.value_exact<std::int64_t>();
    if (!value) return false;
    require(std::in_range<T>(*value), "{}: {} = {} is out of range: give at most {}", where, name, *value,
            std::numeric_limits<T>::max());
    target = static_cast<T>(*value);
  } else {
    if (!node.is_number()) return false;
    target = static_cast<T>(*node.value<double>());
  }
  return true;
}

// What is read into: the configuration, and where its keys were given.
struct Reading {
  Config& config;
  GivenKeys given;
};

void set(Reading& into, const std::string& name, const toml::node& node, const std::string& where) {
  const Key* key = find_key(name);
  require(key != nullptr || !is_section(name),
          "{}: {} is a section, not a key: write [{}] and its keys below", where, name, name);
  if (key == nullptr)
    fail("{}: unknown key '{}'; did you mean '{}'? (annulus-train --print-config lists all)", where, name,
         nearest_key(name).name);
  std::visit(
      [&](auto* target) {
        using T = std::remove_pointer_t<decltype(target)>;
        require(assign(*target, node, name, where), "{}: {} must be {}", where, name, expected_type<T>());
        if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
          require(std::isfinite(static_cast<double>(*target)) && static_cast<double>(*target) >= key->minimum,
                  "{}: {} = {} is out of range: {}", where, name, *target,
                  std::isfinite(key->minimum) && std::isfinite(static_cast<double>(*target))
                      ? fmt::format("give at least {}", key->minimum)
                      : "give a finite number");
        }
      },
      key->reference(into.config));
  into.given[name] = where;
}

void read_table(Reading& into, const toml::table& table, const std::string& prefix, std::string_view origin) {
  for (const auto& [key, node] : table) {
    const std::string name =
        prefix.empty() ? std::string(key.str()) : fmt::format("{}.{}", prefix, key.str());
    if (node.is_table() && find_key(name) == nullptr) {
      if (!is_section(name))
        fail("{}: unknown section [{}]; did you mean [{}]?", place(origin, node), name,
             nearest_section(name));
      read_table(into, *node.as_table(), name, origin);
    } else {
      set(into, name, node, place(origin, node));
    }
  }
}

/// The key of "key=value".
std::string overridden(const std::string& text) {
  const auto equals = text.find('=');
  require(equals != std::string::npos && equals > 0,
          "--set {}: write it as key=value, for instance --set train.steps=200", text);
  return text.substr(0, equals);
}

/// Throws Error where a key is given under its old name and under its new one.
void require_one_name(std::span<const std::string> overrides) {
  std::map<std::string, std::string, std::less<>> old_names;  // by new name
  for (const std::string& text : overrides) {
    const std::string name = overridden(text);
    if (const auto now = config::new_name(config::Names::configuration, name))
      old_names[std::string(*now)] = name;
  }
  for (const std::string& text : overrides) {
    const auto found = old_names.find(overridden(text));
    if (found != old_names.end())
      fail("--set {}: {} is the old name of {}, and both are given: keep {} alone", text, found->second,
           found->first, found->first);
  }
}

void override_key(Reading& into, const std::string& text) {
  std::string name = overridden(text);
  const std::string value = text.substr(name.size() + 1);
  if (const auto now = config::new_name(config::Names::configuration, name)) {
    config::warn_old_name(fmt::format("--set {}", text), name, *now);
    name = *now;
  }
  // What is written to config.toml and to checkpoints must be TOML, which they are read as.
  require(data::is_text(text), "--set {}: the value is not UTF-8: use another name, or another encoding",
          name);
  const std::string where = fmt::format("--set {}", text);
  const Key* key = find_key(name);
  toml::table table;
  try {
    config::require_flat(value, where);
    table = toml::parse("value = " + value + "\n");
  } catch (const toml::parse_error&) {
    table.insert("value", value);  // a string without quotes
  }
  // Without quotes a string may look like something else, a folder named 2024 for example.
  if (key != nullptr && !table["value"].is_string() && !table["value"].is_array()) {
    const Reference reference = key->reference(into.config);
    if (std::holds_alternative<std::string*>(reference) ||
        std::holds_alternative<std::vector<std::string>*>(reference))
      table.insert_or_assign("value", value);
  }
  set(into, name, *table["value"].node(), where);
}

// A string of TOML on one line. toml++ would write line ends as they are, and lose the first of a text.
std::string quoted(const std::string& text) {
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (text.find('\'') == text.npos && std::none_of(text.begin(), text.end(), is_control))
    return fmt::format("'{}'", text);
  std::string escaped;
  for (const char c : text) {
    if (is_control(c))
      escaped += fmt::format("\\u{:04X}", static_cast<int>(c));
    else
      (c == '"' || c == '\\' ? escaped += '\\' : escaped) += c;
  }
  return fmt::format("\"{}\"", escaped);
}

template <class T>
std::string to_text(const T& value) {
  std::ostringstream out;
  if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    std::string array;
    for (const std::string& text : value) array += (array.empty() ? "" : ", ") + quoted(text);
    return value.empty() ? "[]" : fmt::format("[ {} ]", array);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return quoted(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    const std::string text = fmt::format("{}", value);  // the shortest that is read back as the same number
    return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
  } else if constexpr (std::is_same_v<T, int>) {
    return to_text(std::int64_t{value});
  } else {
    out << toml::value<T>(value);
  }
  return out.str();
}

// "1, 2, 3 or 6".
std::string divisors_of(std::int64_t number) {
  std::vector<std::int64_t> divisors;
  for (std::int64_t i = 1; i <= number / i; ++i) {
    if (number % i != 0) continue;
    divisors.push_back(i);
    if (i != number / i) divisors.push_back(number / i);
  }
  std::ranges::sort(divisors);
  const std::int64_t last = divisors.back();
  divisors.pop_back();
  return divisors.empty() ? fmt::format("{}", last)
                          : fmt::format("{} or {}", fmt::join(divisors, ", "), last);
}

Config defaults() {
  Config config;
  config.model.vocabulary = 0;
  return config;
}

// Takes keys that another version knew out of a stored configuration. Throws Error where one of them may
// change what is computed.
void drop_unknown(toml::table& table, std::string_view origin) {
  constexpr std::array harmless{"run", "data", "train", "checkpoint"};
  for (auto& [section, node] : table) {
    const std::string name(section.str());
    require(is_section(name) && node.is_table(),
            "{}: its configuration has [{}], which this version of annulus-train does not know and which may "
            "change what is computed: go on with the version that wrote it",
            origin, name);
    toml::table& keys = *node.as_table();
    std::vector<std::string> unknown;
    for (const auto& [key, value] : keys)
      if (find_key(fmt::format("{}.{}", name, key.str())) == nullptr) unknown.emplace_back(key.str());
    for (const std::string& key : unknown) {
      std::ostringstream value;
      value << toml::node_view<const toml::node>(keys.get(key));
      require(std::ranges::find(harmless, name) != harmless.end(),
              "{}: its configuration has {}.{} = {}, which this version of annulus-train does not know and "
              "which may change what is computed: go on with the version that wrote it",
              origin, name, key, value.str());
      spdlog::warn(
          "{}: its configuration has {}.{} = {}, which this version of annulus-train does not know "
          "and leaves out",
          origin, name, key, value.str());
      keys.erase(key);
    }
  }
}

}  // namespace

std::string value_text(const Key& key, const Config& config) {
  // The table's functions give pointers for reading and writing alike; here they are only read.
  return std::visit([](auto* value) { return to_text(*value); }, key.reference(const_cast<Config&>(config)));
}

Config Config::load(const std::filesystem::path& file, std::span<const std::string> overrides) {
  return parse(config::read_text(file), file.string(), overrides);
}

Config Config::parse(std::string_view text, std::string_view origin, std::span<const std::string> overrides) {
  Config config = defaults();
  toml::table table = config::parse(text, origin);
  config::rename_keys(table, config::Names::configuration, origin);
  Reading reading{config, {}};
  read_table(reading, table, "", origin);
  require_one_name(overrides);
  for (const std::string& text_override : overrides) override_key(reading, text_override);
  take_model(config, reading.given);
  try {
    config.check();
  } catch (const Error& error) {
    fail("{}: {}", origin, error.what());
  }
  return config;
}

Config Config::parse_stored(std::string_view text, std::string_view origin) {
  Config config = defaults();
  toml::table table = config::parse(text, origin);
  config::rename_keys(table, config::Names::configuration, origin);
  drop_unknown(table, origin);
  Reading reading{config, {}};
  read_table(reading, table, "", origin);
  return config;
}

std::string Config::to_toml(bool explain) const {
  std::string text, section;
  for (const Key& key : config_table()) {
    const std::string name = key.name;
    const std::string key_section = name.substr(0, name.find('.'));
    if (key_section != section) {
      section = key_section;
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section);
    }
    text += fmt::format("{} = {}", name.substr(name.find('.') + 1), value_text(key, *this));
    text += explain ? fmt::format("  # {}\n", key.meaning) : "\n";
  }
  return text;
}

void Config::check() const {
  model::LlamaConfig shape = model;
  if (shape.vocabulary == 0) shape.vocabulary = 1;  // the data will say
  shape.check();
  require(run.device == "auto" || run.device == "cpu" || run.device == "gpu",
          "run.device = '{}' is unknown; known are auto, cpu and gpu", run.device);
  require(
      parallel.zero <= 3,
      "parallel.zero = {} is no stage of ZeRO: 0 shards nothing, 1 the optimizer's state, 2 gradients too, "
      "3 parameters too (docs/sharding.md)",
      parallel.zero);
  require(
      parallel.shard == 0 || parallel.zero > 0,
      "parallel.shard = {} is of use where something is sharded: set parallel.zero to 1, 2 or 3, or leave "
      "it out",
      parallel.shard);
  require(
      parallel.shard != 1,
      "parallel.shard = 1 would shard over one rank: give 2 or more, 0 for all ranks, or set parallel.zero "
      "= 0");
  comm::parse_sums(parallel.sums, "parallel.sums =");
  require(train.dtype == "f32" || train.dtype == "bf16",
          "train.dtype = '{}': weights and activations are f32 or bf16", train.dtype);
  train.passes();
  activations();
  require(train.clip_norm > 0,
          "train.clip_norm = {}: give a positive number (a very large one does not clip)", train.clip_norm);
  require(train.warmup_steps <= schedule_steps(),
          "train.warmup_steps = {} exceeds train.{} = {}: warm up for fewer steps, or raise "
          "train.schedule_steps",
          train.warmup_steps, train.schedule_steps > 0 ? "schedule_steps" : "steps", schedule_steps());
  require(train.min_lr <= train.lr, "train.min_lr = {} exceeds train.lr = {}: the cosine goes down",
          train.min_lr, train.lr);
  for (const auto& [name, beta] : {std::pair("beta1", train.beta1), std::pair("beta2", train.beta2)})
    require(beta < 1, "train.{} = {}: give a number from 0 up to, but not 1", name, beta);
  require(train.epsilon > 0, "train.epsilon = {}: give a small positive number", train.epsilon);
  adamw().validate();
  learning_rate().validate();
  const bool any_schedule = attention.schedule == simulate::automatic,
             any_layout = attention.layout == simulate::automatic;
  if (!any_schedule) plan::check_schedule(attention.schedule, "attention.schedule");
  if (!any_layout) Layout::parse(attention.layout, "attention.layout");
  require(any_schedule || any_layout || attention.cluster.empty(),
          "attention.cluster = '{}' has no effect without auto: set attention.schedule or "
          "attention.layout to auto, or leave it out",
          attention.cluster);
}

std::int64_t Config::Train::passes() const {
  require(micro_batches % sequences_per_pass == 0,
          "train.sequences_per_pass = {} does not divide train.micro_batches = {}: set it to {}, or set "
          "train.micro_batches to a multiple of {}",
          sequences_per_pass, micro_batches, divisors_of(micro_batches), sequences_per_pass);
  return micro_batches / sequences_per_pass;
}

std::chrono::milliseconds Config::file_stall_timeout() const {
  if (run.stall_timeout == 0) return stall_timeout();
  return std::max<std::chrono::milliseconds>(stall_timeout(), std::chrono::hours(1));
}

optim::AdamWOptions Config::adamw() const {
  return {train.beta1, train.beta2, train.epsilon, train.weight_decay};
}

optim::LearningRateSchedule Config::learning_rate() const {
  return {train.lr, train.min_lr, train.warmup_steps, schedule_steps()};
}

model::ActivationOptions Config::activations() const {
  model::ActivationOptions options{
      .recompute = {}, .offload = memory.offload_activations, .chunk_rows = memory.chunk_rows};
  for (const std::string& name : memory.recompute)
    options.recompute.push_back(model::parse_recompute(name, "memory.recompute"));
  require(options.recompute.size() == 1 || options.recompute.size() == static_cast<std::size_t>(model.layers),
          "memory.recompute lists {} policies, but the model has {} layers (model.layers): give one policy "
          "for all layers, or one for each",
          options.recompute.size(), model.layers);
  require(memory.store_fraction >= 0 && memory.store_fraction <= 1,
          "memory.store_fraction = {} is no share of the positions: give 0 to 1", memory.store_fraction);
  require(memory.offload_activations >= 0 && memory.offload_activations <= 1,
          "memory.offload_activations = {} is no share of the layers: give 0 to 1",
          memory.offload_activations);
  if (std::ranges::find(options.recompute, model::Recompute::sequence_selective) != options.recompute.end()) {
    options.early_positions = data.sequence_length -
                              std::llround(memory.store_fraction * static_cast<double>(data.sequence_length));
  } else {
    require(memory.store_fraction == Memory().store_fraction,
            "memory.store_fraction = {} is for memory.recompute = 'sequence-selective', which no layer has: "
            "leave it out, or take that policy",
            memory.store_fraction);
  }
  return options;
}

std::vector<Difference> incompatible(const Config& before, const Config& after, Continuation continuation) {
  std::vector<Difference> differences;
  for (const Key& key : config_table()) {
    if (key.fixed == Fixed::never) continue;
    if (key.fixed == Fixed::in_run && continuation == Continuation::branch) continue;
    const std::string old_value = value_text(key, before), new_value = value_text(key, after);
    if (old_value != new_value) differences.push_back({key.name, old_value, new_value});
  }
  return differences;
}

}  // namespace annulus::train
