#include "run_record.hpp"

#include <algorithm>
#include <sstream>
#include <system_error>

#include <annulus/base/error.hpp>

#include "base/config/parse.hpp"
#include "base/parse_number.hpp"
#include "training/checkpoint/folder.hpp"
#include "training/io/json.hpp"
#include "training/io/json_lines.hpp"

namespace annulus::report {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// null where it was not finite: the step was skipped.
double number(const json& record, const char* key) {
  return record.at(key).is_null() ? unknown : record.at(key).get<double>();
}

/// A number of steps or tokens. Larger ones are not counted one by one by the numbers of charts.
std::int64_t count(const json& record, const char* key) {
  constexpr std::int64_t most = std::int64_t{1} << 53;
  const json& value = record.at(key);
  require(value.is_number_integer() && value >= 1 && value <= most,
          "{} is {}: it has to be a whole number from 1 to {}", key, io::shown(value), most);
  return value;
}

/// That up to which a bucket of validation goes.
std::int64_t position(const std::string& text) {
  const auto position = parse_number<std::int64_t>(text);
  require(position.has_value(), "a key of by_position is {}: it has to be a whole number", io::shown(text));
  return *position;
}

StepRecord step_of(const json& record) {
  StepRecord step{.step = count(record, "step"),
                  .tokens = count(record, "tokens"),
                  .loss = number(record, "loss"),
                  .gradient_norm = number(record, "grad_norm"),
                  .learning_rate = record.at("lr"),
                  .tokens_per_second = record.at("tokens_per_second"),
                  .seconds = record.at("step_seconds"),
                  .mfu = record.value("mfu", unknown),
                  .density = record.value("attention_density", 1.0),
                  .recall = record.value("attention_recall", unknown),
                  .parts = record.value("parts", std::map<std::string, double>())};
  if (record.contains("validation"))
    for (const auto& [set, of] : record.at("validation").items()) {
      Validation& validation = step.validation[set];
      validation.loss = of.at("loss");
      for (const auto& [up_to, bucket] : of.at("by_position").items())
        validation.by_position[position(up_to)] = bucket.at("loss");
    }
  step.waiting = record.at("exposed_communication_seconds").get<double>() +
                 record.at("exposed_sharding_seconds").get<double>();
  return step;
}

void read_metrics(const fs::path& file, RunRecord& run) {
  json last;
  io::read_json_lines(file, [&](const json& record, std::int64_t line) {
    const auto after = record.value("started_after", std::int64_t{0});
    if (after > 0 && (run.starts.empty() || run.starts.back() != after)) run.starts.push_back(after);
    try {
      run.steps.push_back(step_of(record));
    } catch (const Error& error) {
      fail("'{}', line {}: {}", file.string(), line, error.what());
    }
    last = record;
  });
  require(!run.steps.empty(), "{}: no optimizer step has ended yet: try again later", file.string());
  const json& measured = last.at("peak_memory_bytes");
  const json& predicted = last.at("predicted_peak_bytes");
  run.memory_on_device = measured.contains("device") && predicted.contains("device");
  const json& used = run.memory_on_device ? measured.at("device") : measured;
  const json& expected = run.memory_on_device ? predicted.at("device") : predicted;
  for (const auto& [category, bytes] : expected.items())
    if (bytes.is_number()) run.memory.push_back({category, used.value(category, std::int64_t{0}), bytes});
  std::ranges::stable_sort(run.memory, {}, [](const MemoryRow& row) { return row.category == "total"; });
}

// null where it was not finite.
std::vector<double> numbers(const json& list) {
  std::vector<double> values;
  for (const json& value : list) values.push_back(value.is_null() ? unknown : value.get<double>());
  return values;
}

AuditedLayer audited_layer(const json& record) {
  const json& pattern = record.at("pattern");
  AuditedLayer layer{.layer = record.at("layer"),
                     .selects = record.at("selects"),
                     .density = numbers(record.at("density")),
                     .recall = numbers(record.at("recall")),
                     .entropy = numbers(record.at("entropy")),
                     .gradient = numbers(record.at("gradient")),
                     .gradient_recall = numbers(record.at("gradient_recall")),
                     .pattern = {.head = pattern.at("head"), .block = pattern.at("block")}};
  for (const json& row : pattern.at("weights")) layer.pattern.weights.push_back(numbers(row));
  for (const json& row : pattern.at("gradients")) layer.pattern.gradients.push_back(numbers(row));
  return layer;
}

void read_audits(const fs::path& file, std::vector<AuditRecord>& audits) {
  io::read_json_lines(file, [&](const json& record, std::int64_t) {
    if (audits.size() > 1)  // pictures of the first and the last one are enough
      for (AuditedLayer& layer : audits.back().layers) layer.pattern = {};
    AuditRecord& audit = audits.emplace_back(record.at("step").get<std::int64_t>());
    for (const json& layer : record.at("layers")) audit.layers.push_back(audited_layer(layer));
  });
}

void flatten(const toml::table& table, const std::string& prefix,
             std::map<std::string, std::string>& values) {
  for (const auto& [name, value] : table) {
    const std::string key = prefix + std::string(name.str());
    if (const toml::table* inner = value.as_table()) {
      flatten(*inner, key + ".", values);
    } else {
      std::ostringstream text;
      value.visit([&](const auto& held) { text << held; });
      values[key] = text.str();
    }
  }
}

}  // namespace

RunRecord read_run(const fs::path& folder) {
  std::error_code error;
  const fs::path metrics = folder / "metrics.jsonl";
  require(fs::exists(metrics, error),
          "'{}' is no run folder: there is no metrics.jsonl in it (give the run.folder of annulus-train)",
          folder.string());
  RunRecord run;
  run.name = fs::absolute(folder).lexically_normal().filename().string();
  if (run.name.empty()) run.name = fs::absolute(folder).lexically_normal().parent_path().filename().string();
  io::take_json_apart(metrics.string(), [&] { read_metrics(metrics, run); });
  const fs::path audits = folder / "attention.jsonl";
  if (fs::exists(audits, error))
    io::take_json_apart(audits.string(), [&] { read_audits(audits, run.audits); });
  if (fs::exists(folder / "config.toml", error))
    flatten(config::parse_file(folder / "config.toml"), "", run.configuration);
  if (fs::exists(folder / "summary.json", error)) run.summary = io::read_json(folder / "summary.json");
  run.checkpoints = checkpoint::CheckpointFolder(folder / "checkpoints", {}).steps();
  return run;
}

}  // namespace annulus::report
