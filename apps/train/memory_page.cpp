#include "memory_page.hpp"

#include <fmt/format.h>

#include <numeric>
#include <system_error>

#include <annulus/base/error.hpp>

#include "base/units.hpp"
#include "html/charts.hpp"
#include "html/element.hpp"
#include "html/page.hpp"
#include "html/table.hpp"
#include "training/io/json.hpp"

namespace annulus::app {

using prediction::MomentMemory;

namespace {

std::string category_name(int category) {
  return std::string(name_of(static_cast<MemoryCategory>(category)));
}

double total(const MemoryBytes& bytes) {
  return double(std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}));
}

MemoryBytes bytes_of(const nlohmann::json& json) {
  MemoryBytes bytes{};
  for (int i = 0; i < memory_category_count; ++i)
    bytes[static_cast<std::size_t>(i)] = json.value(category_name(i), std::int64_t{0});
  return bytes;
}

std::vector<MomentMemory> measured_moments(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "memory.json";
  std::error_code error;
  require(std::filesystem::exists(file, error) || error,
          "{}: there is no such file: a run writes it after its second optimizer step", file.string());
  const nlohmann::json json = io::read_json(file);
  return io::take_json_apart(file.string(), [&] {
    std::vector<MomentMemory> moments;
    for (const nlohmann::json& moment : json.at("measured"))
      moments.push_back({moment.at("moment"), bytes_of(moment.at("device")), bytes_of(moment.at("host"))});
    return moments;
  });
}

const MemoryBytes& of(const MomentMemory& moment, bool on_gpu) {
  return on_gpu ? moment.device : moment.host;
}

/// `line`: the moments whose totals are drawn over the columns; may be empty.
std::string chart(const std::string& title, const std::vector<MomentMemory>& moments, bool on_gpu,
                  const BinaryUnit& unit, const std::string& line_name,
                  const std::vector<MomentMemory>& line) {
  html::StackedChart chart{.title = title, .unit = std::string(unit.name), .line_name = line_name};
  for (const MomentMemory& moment : moments) chart.columns.push_back(moment.moment);
  for (int i = 0; i < memory_category_count; ++i) {
    html::Layer layer{
        .name = category_name(i), .colour = html::series_colour(static_cast<std::size_t>(i)), .values = {}};
    for (const MomentMemory& moment : moments)
      layer.values.push_back(double(of(moment, on_gpu)[static_cast<std::size_t>(i)]) / unit.bytes);
    chart.layers.push_back(std::move(layer));
  }
  for (const MomentMemory& moment : line) chart.line.push_back(total(of(moment, on_gpu)) / unit.bytes);
  return html::figure(to_svg(chart));
}

std::string policy_table(const training::MemoryPlan& plan, bool on_gpu, const BinaryUnit& unit) {
  html::Table table({{"policy", html::Table::Align::text},
                     {fmt::format("{}{}", on_gpu ? "GPU " : "", unit.name)},
                     {fmt::format("host {}", unit.name)},
                     {"a step"},
                     {"fits", html::Table::Align::text}});
  for (const training::PlannedPolicy& policy : plan.policies)
    table.add({policy.outline,
               fmt::format("{:.2f}",
                           double(on_gpu ? policy.bytes.device.total : policy.bytes.host.total) / unit.bytes),
               on_gpu ? fmt::format("{:.2f}", double(policy.bytes.host.total) / unit.bytes) : "–",
               duration_text(policy.time.total()), policy.fits() ? "yes" : "no"});
  return table.to_html();
}

}  // namespace

BinaryUnit unit_of(const training::MemoryPlan& plan, bool on_gpu) {
  const prediction::UpdateMemory& bytes = plan.configured.bytes;
  return binary_unit((on_gpu ? bytes.device : bytes.host).total);
}

std::string memory_page(const training::MemoryPlan& plan, const training::PlannedMachine& machine,
                        const std::filesystem::path& measured) {
  const bool on_gpu = machine.on_gpu;
  std::vector<MomentMemory> predicted = plan.configured.bytes.moments, seen;
  if (!measured.empty()) {
    seen = measured_moments(measured);
    require(seen.size() == predicted.size(),
            "{}: its memory.json has {} moments, the prediction {}: give the configuration of that run "
            "(config.toml in its folder)",
            measured.string(), seen.size(), predicted.size());
  } else if (plan.configured.bytes.validation) {
    predicted.push_back(*plan.configured.bytes.validation);
  }
  std::vector<html::LegendKey> keys;
  for (int i = 0; i < memory_category_count; ++i)
    keys.push_back({html::series_colour(static_cast<std::size_t>(i)), category_name(i)});
  std::string body = html::legend(keys, seen.empty() ? "" : "The line is the total of the other drawing.");
  const BinaryUnit unit = unit_of(plan, on_gpu);
  body += chart("predicted", predicted, on_gpu, unit, "measured, in all", seen);
  if (!seen.empty()) body += chart("measured", seen, on_gpu, unit, "predicted, in all", predicted);
  body += policy_table(plan, on_gpu, unit);
  return html::to_text(
      {.title = "memory of an optimizer step",
       .heading = fmt::format("Memory of {} over an optimizer step", on_gpu ? "a GPU" : "a rank"),
       .subtitle = fmt::format(
           "{}; {} tokens a sequence on {}; attention {} / {}; parallel.zero = {}; times by rates of {}",
           plan.configured.outline, plan.config.data.sequence_length, machine.topology.to_string(),
           plan.schedule, plan.layout, plan.config.parallel.zero, machine.rates),
       .body = body,
       .program = "annulus-train --plan-memory"});
}

}  // namespace annulus::app
