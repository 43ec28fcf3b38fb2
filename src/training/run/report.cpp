#include "training/run/report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <ranges>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <annulus/base/kokkos/tensor.hpp>

#include "base/config/output_format.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "base/units.hpp"
#include "training/run/planner/plan_memory.hpp"
#include "training/run/state/step_parts.hpp"
#include "training/run/validation.hpp"

namespace annulus::training {

namespace {

// An outcome has mean losses, over so many optimizer steps at either end.
constexpr std::size_t averaged_steps = 10;

// What a spike stands out from.
constexpr std::size_t spike_steps = 100, least_spike_steps = 20;
constexpr double spike_deviations = 6;

// NaN where there are none.
double mean(const std::deque<double>& values) {
  return values.empty() ? std::numeric_limits<double>::quiet_NaN()
                        : std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}

std::string clock_text(double seconds) {
  const auto s = static_cast<long>(std::lround(seconds));
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

double recall_of(const sparsity::LayerAudit& layer, const sparsity::HeadAudit& head) {
  return layer.selects ? std::min(1.0, head.recall / head.queries) : 1.0;  // rounding may exceed it
}

// Of the heads of layers that select; nothing where none does.
std::optional<double> mean_recall(const std::vector<sparsity::LayerAudit>& audit) {
  double sum = 0, heads = 0;
  for (const sparsity::LayerAudit& layer : audit) {
    if (!layer.selects) continue;
    for (const sparsity::HeadAudit& head : layer.heads) sum += recall_of(layer, head), ++heads;
  }
  return heads > 0 ? std::optional(sum / heads) : std::nullopt;
}

// The share that each cell has of all of them.
nlohmann::json shares_json(const std::vector<double>& cells, std::size_t columns) {
  const double all = std::accumulate(cells.begin(), cells.end(), 0.0);
  nlohmann::json rows;
  for (std::size_t first = 0; first < cells.size(); first += columns) {
    nlohmann::json& row = rows.emplace_back(nlohmann::json::array());
    for (std::size_t i = first; i < first + columns; ++i)
      row.push_back(cells[i] == 0 ? nlohmann::json(0) : nlohmann::json(four_digits(cells[i] / all)));
  }
  return rows;
}

// Calls `visit` with a reference to every number of which the largest over the ranks counts.
template <class Visit>
void visit_maxima(StepResult& result, const Visit& visit) {
  visit(result.seconds);
  visit(result.exposed_communication_seconds);
  visit(result.exposed_sharding_seconds);
  visit(result.planning_seconds);
  if (result.cut) {
    visit(result.cut->imbalance);
    visit(result.cut->group_imbalance);
    visit(result.cut->seconds_ahead);
  }
  visit(result.stop_signal);
  visit(result.saving);
  visit(result.damaged_data);
  for (StepResult::ReadSequence& sequence : result.sequences) {
    visit(sequence.counted);
    visit(sequence.gap);
  }
  visit(result.memory.resident);
  visit(result.memory.device_pool);
  visit(result.memory.device_libraries);
  for (MemoryUse* use : {&result.memory.host, &result.memory.device}) {
    visit(use->total_peak);
    for (std::int64_t& peak : use->peak) visit(peak);
  }
}

// Whether `value` stands out from those before, which it joins.
bool stands_out(std::deque<double>& before, double value) {
  if (!std::isfinite(value)) return true;
  double squares = 0;
  const double middle = mean(before);
  for (const double earlier : before) squares += (earlier - middle) * (earlier - middle);
  const bool out = before.size() >= least_spike_steps &&
                   value - middle > spike_deviations * std::sqrt(squares / double(before.size()));
  before.push_back(value);
  if (before.size() > spike_steps) before.pop_front();
  return out;
}

std::string curve_text(const optimizer::LearningRateSchedule& schedule) {
  using enum optimizer::LearningRateSchedule::Curve;
  std::string text =
      fmt::format("train.lr = {}, min_lr = {}, warmup_steps = {}, schedule_steps = {}", schedule.lr,
                  schedule.min_lr, schedule.warmup_steps, schedule.schedule_steps);
  if (schedule.curve != cosine) text += fmt::format(", schedule = '{}'", schedule.name_of(schedule.curve));
  if (schedule.curve == wsd) text += fmt::format(", decay_steps = {}", schedule.decay_steps);
  return text;
}

}  // namespace

void MemoryWatch::observe() {
  pool_ = std::max({pool_, device_memory().pooled, memory_use(MemoryKind::device).total_current});
  libraries_ = std::max(libraries_, library_memory());
}

PeakMemory MemoryWatch::peaks() const {
  return {.host = memory_use(MemoryKind::host),
          .device = memory_use(MemoryKind::device),
          .resident = peak_resident_bytes(),
          .device_pool = pool_,
          .device_libraries = libraries_};
}

void take_maxima(comm::Communicator& world, StepResult& result) {
  std::vector<double> values;  // which hold bytes exactly up to 2^53
  visit_maxima(result, [&](auto& value) { values.push_back(static_cast<double>(value)); });
  values.push_back(-result.least_exposed_communication_seconds);  // whose least counts
  world.all_reduce(Queue(Kokkos::DefaultHostExecutionSpace()), values.data(), values.size(), DType::f64,
                   comm::ReduceOp::max);
  auto next = values.begin();
  visit_maxima(result, [&](auto& value) { value = static_cast<std::decay_t<decltype(value)>>(*next++); });
  result.least_exposed_communication_seconds = -*next;
}

bool SpikeWatch::observe(double loss, double gradient_norm) {
  const bool of_loss = stands_out(losses_, loss), of_norm = stands_out(norms_, gradient_norm);
  return of_loss || of_norm;
}

void Tally::add(const StepResult& result) {
  if (std::isfinite(result.loss)) {
    if (first_losses_.size() < averaged_steps) first_losses_.push_back(result.loss);
    last_losses_.push_back(result.loss);
    if (last_losses_.size() > averaged_steps) last_losses_.pop_front();
  }
  if (steps_++ > 0) {
    tokens_ += result.tokens;
    seconds_ += result.seconds;
    flops_ += result.flops;
  }
  last_ = result;
}

double Tally::seconds_per_step() const {
  return steps_ > 1 ? seconds_ / double(steps_ - 1) : last_.seconds;
}

double Tally::seconds_per_token() const {
  return steps_ > 1 ? seconds_ / double(tokens_)
                    : last_.seconds / double(std::max<std::int64_t>(1, last_.tokens));
}

void Tally::write(Outcome& outcome, int ranks) const {
  outcome.first_loss = mean(first_losses_);
  outcome.last_loss = mean(last_losses_);
  outcome.seconds = seconds_;
  if (seconds_ > 0) {
    outcome.tokens_per_second = double(tokens_) / seconds_;
    outcome.tflops = flops_ / seconds_ / ranks * 1e-12;
  }
  outcome.memory = last_.memory;
}

nlohmann::json to_json(const PeakMemory& peaks) {
  nlohmann::json json = peaks_json(peaks.host.peak, peaks.host.total_peak);
  json["resident"] = peaks.resident;
  if (has_device) {
    json["device"] = peaks_json(peaks.device.peak, peaks.device.total_peak);
    json["device"]["pool"] = peaks.device_pool;
    json["device"]["libraries"] = peaks.device_libraries;
  }
  return json;
}

nlohmann::json metrics_record(const StepResult& result, const ReportOptions& options, std::int64_t step,
                              std::int64_t tokens_so_far, std::int64_t epoch) {
  const double tflops = result.tflops(options.ranks);
  nlohmann::json record = {
      {"step", step},
      {"loss", result.loss},
      {"tokens", tokens_so_far},
      {"targets", result.targets},
      {"gap_tokens", result.gap_tokens()},
      {"tokens_per_second", result.tokens_per_second()},
      {"tflops", tflops},
      {"grad_norm", result.gradient_norm},
      {"lr", result.learning_rate},
      {"skipped_steps", result.skipped_steps},
      {"step_seconds", result.seconds},
      {"exposed_communication_seconds", result.exposed_communication_seconds},
      {"least_exposed_communication_seconds", result.least_exposed_communication_seconds},
      {"exposed_sharding_seconds", result.exposed_sharding_seconds},
      {"planning_seconds", result.planning_seconds},
      {"forward_attention", result.forward_attention},
      {"attention_density", result.attention_density},
      {"attention_computation_ratio", result.attention_computation_ratio},
      {"epoch", epoch},
      {"started_after", options.started_after},
      {"steps", options.steps},
      {"peak_memory_bytes", to_json(result.memory)},
      {"predicted_peak_bytes", peaks_json(options.predicted)}};
  if (result.attention_imbalance)
    record["attention_imbalance"] = {{"worker", result.attention_imbalance->workers},
                                     {"step", result.attention_imbalance->steps}};
  for (std::size_t part = 0; part < result.part_seconds.size(); ++part)
    if (result.part_seconds[part] > 0) record["parts"][step_part_names[part]] = result.part_seconds[part];
  if (const auto& cut = result.cut)
    record["cut"] = {{"imbalance", cut->imbalance},
                     {"group_imbalance", cut->group_imbalance},
                     {"seconds_ahead", cut->seconds_ahead},
                     {"fingerprint", fmt::format("{:016x}", cut->fingerprint)}};
  if (result.skipped()) record["not_finite"] = result.not_finite;
  if (result.spike) record["spike"] = true;
  for (const SetRead& set : result.sets)
    record["sets"][set.name] = {{"sequences", set.sequences},
                                {"targets", set.targets},
                                {"loss", set.targets > 0 ? nlohmann::json(set.loss) : nlohmann::json()},
                                {"epochs", set.epochs}};
  if (const auto recall = mean_recall(result.audit)) record["attention_recall"] = *recall;
  if (!result.validation.empty()) {
    record["validation"] = to_json(result.validation);
    record["validation_seconds"] = result.validation_seconds;
  }
  if (const auto& rank = result.slowest.rank) {
    record["slowest_rank"] = rank->rank;
    record["slowest_compute_share"] = rank->compute_share;
  }
  if (const auto& links = result.slowest.links; !links.empty()) {
    const auto& [sender, receiver, rate] = links.front();
    record["slowest_link"] = {{"sender", sender}, {"receiver", receiver}, {"bytes_per_second", rate}};
    for (const auto& link : links) record["link_rates"].push_back({link.sender, link.receiver, link.rate});
  }
  if (options.peak_tflops > 0) record["mfu"] = tflops / options.peak_tflops;
  record["format_version"] = config::output_format_version;
  return record;
}

std::string parts_text(const std::vector<double>& seconds) {
  std::vector<std::pair<double, std::string>> parts;
  const double all = std::reduce(seconds.begin(), seconds.end());
  for (std::size_t part = 0; part < seconds.size(); ++part) {
    std::string name = step_part_names[part];
    std::ranges::replace(name, '_', ' ');
    if (seconds[part] >= 0.0005 * all)
      parts.emplace_back(seconds[part], fmt::format("{} {:.1f} %", name, 100 * seconds[part] / all));
  }
  std::ranges::sort(parts, std::greater());
  return fmt::format("{} by part: {}", duration_text(all), fmt::join(parts | std::views::values, ", "));
}

nlohmann::json attention_record(const StepResult& result, std::int64_t step) {
  nlohmann::json layers = nlohmann::json::array();
  for (const sparsity::LayerAudit& of : result.audit) {
    nlohmann::json layer = {{"layer", of.layer}, {"selects", of.selects}};
    const auto add = [&](const char* key, const auto& value_of) {
      for (const sparsity::HeadAudit& head : of.heads) layer[key].push_back(value_of(head));
    };
    using Head = sparsity::HeadAudit;
    add("density", [](const Head& head) { return head.density; });
    add("recall", [&](const Head& head) { return recall_of(of, head); });
    add("entropy", [](const Head& head) { return head.entropy / head.queries; });
    // Of the sum of the cross-entropies, while a step's gradients are of their mean.
    add("gradient", [&](const Head& head) {
      return head.gradient / head.queries * double(std::max<std::int64_t>(1, result.targets));
    });
    add("gradient_recall", [&](const Head& head) {
      return of.selects && head.gradient > 0 ? head.selected_gradient / head.gradient : 1.0;
    });
    const auto columns = static_cast<std::size_t>(std::lround(std::sqrt(double(of.weights.size()))));
    layer["pattern"] = {{"head", of.pictured_head},
                        {"block", of.block},
                        {"weights", shares_json(of.weights, columns)},
                        {"gradients", shares_json(of.gradients, columns)}};
    layers.push_back(std::move(layer));
  }
  return {{"step", step},
          {"queries", static_cast<std::int64_t>(result.audit.front().heads.front().queries)},
          {"layers", std::move(layers)},
          {"format_version", config::output_format_version}};
}

std::vector<std::string> learning_rate_notes(const std::optional<Config>& before, const Config& now,
                                             std::int64_t step) {
  std::vector<std::string> notes;
  const optimizer::LearningRateSchedule next = now.learning_rate();
  optimizer::LearningRateSchedule last = before ? before->learning_rate() : next;
  if (!last.ends() && !next.ends()) last.schedule_steps = next.schedule_steps;  // of which nothing comes
  if (last != next)
    notes.push_back(
        fmt::format("the learning rate takes another curve: {} instead of {}; optimizer step {} runs at "
                    "{:.3g} instead of {:.3g}",
                    curve_text(next), curve_text(last), step + 1, next.at(step), last.at(step)));
  if (next.ends() && now.steps() > next.schedule_steps && step < now.steps())
    notes.push_back(fmt::format(
        "the learning rate is at train.min_lr = {} from optimizer step {} (train.schedule_steps) on, up to "
        "the last, {}{}",
        next.min_lr, next.schedule_steps, now.steps(), now.train.steps > 0 ? " (train.steps)" : ""));
  return notes;
}

std::string progress_line(const StepResult& result, const ReportOptions& options, std::int64_t step,
                          double mean_loss, double seconds_left) {
  const double tflops = result.tflops(options.ranks);
  std::string rate =
      fmt::format("{:.0f} tokens/s  {:.3g} TFLOP/s per rank", result.tokens_per_second(), tflops);
  if (options.peak_tflops > 0) rate += fmt::format(" (MFU {:.1f}%)", 100 * tflops / options.peak_tflops);
  const auto unsigned_nan = [](double value) { return std::isnan(value) ? std::fabs(value) : value; };
  return fmt::format("step {}/{}  loss {:.4f}  mean {:.4f}  {}  grad norm {:.3f}  lr {:.2e}  ETA {}", step,
                     options.steps, unsigned_nan(result.loss), unsigned_nan(mean_loss), rate,
                     result.gradient_norm, result.learning_rate, clock_text(seconds_left));
}

}  // namespace annulus::training
