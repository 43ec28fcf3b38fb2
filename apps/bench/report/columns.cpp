#include "bench/report/columns.hpp"

#include <fmt/format.h>

#include <array>

#include "base/units.hpp"
#include "common/output/csv.hpp"

namespace annulus::bench {

using nlohmann::json;

std::span<const ResultColumn> columns() {
  using enum ResultColumn::Form;
  constexpr bool of_case = false, of_pass = true;

  static constexpr auto all = std::to_array<ResultColumn>({
      {"git_hash", nullptr, text, of_case, "/git_hash"},
      {"version", nullptr, text, of_case, "/version"},
      {"schedule", "schedule", text, of_case, "/config/schedule"},
      {"layout", "layout", text, of_case, "/config/layout"},
      {"asked", "asked", text, of_case, "/asked"},
      {"mask", "mask", text, of_case, "/config/mask"},
      {"tokens", "tokens", count, of_case, "/config/tokens"},
      {"ranks", "ranks", count, of_case, "/topology/ranks"},
      {"nodes", "nodes", count, of_case, "/topology/nodes"},
      {"threads_per_rank", nullptr, count, of_case, "/topology/threads_per_rank"},
      {"communicator", nullptr, text, of_case, "/topology/communicator"},
      {"execution_space", nullptr, text, of_case, "/topology/execution_space"},
      {"attention_kernel", nullptr, text, of_case, "/topology/attention_kernel"},
      {"heads", "heads", count, of_case, "/config/heads"},
      {"kv_heads", "kv heads", count, of_case, "/config/kv_heads"},
      {"head_dim", nullptr, count, of_case, "/config/head_dim"},
      {"batch", nullptr, count, of_case, "/config/batch"},
      {"dtype", "type", text, of_case, "/config/dtype"},
      {"kernel", nullptr, text, of_case, "/config/kernel"},
      {"overlap", "overlap", text, of_case, "/config/overlap"},
      {"warm_up", nullptr, count, of_case, "/config/warm_up"},
      {"repetitions", nullptr, count, of_case, "/config/repetitions"},
      {"pass", "pass", text, of_pass, ""},
      {"seconds", "ms", milliseconds, of_pass, "/seconds"},
      {"seconds_min", "min ms", milliseconds, of_pass, "/seconds_min"},
      {"seconds_max", "max ms", milliseconds, of_pass, "/seconds_max"},
      {"pairs", nullptr, count, of_pass, "/pairs"},
      {"tflops_per_rank", "TFLOP/s per rank", ratio, of_pass, "/tflops_per_rank"},
      {"local_kernel_seconds", nullptr, milliseconds, of_pass, "/local_kernel/seconds"},
      {"local_kernel_gflops_per_rank", nullptr, ratio, of_pass, "/local_kernel/gflops_per_rank"},
      {"local_kernel_share", "of the kernel's rate", ratio, of_pass, "/local_kernel_share"},
      {"strong_scaling_efficiency", "strong scaling", ratio, of_pass, "/scaling/strong_efficiency"},
      {"weak_scaling_efficiency", "weak scaling", ratio, of_pass, "/scaling/weak_efficiency"},
      {"sent_bytes_intra_node", "sent inside nodes", bytes, of_pass, "/sent_bytes/intra_node"},
      {"sent_bytes_inter_node", "between nodes", bytes, of_pass, "/sent_bytes/inter_node"},
      {"exposed_communication_seconds", "exposed ms", milliseconds, of_pass,
       "/exposed_communication/seconds"},
      {"exposed_communication_seconds_max", nullptr, milliseconds, of_pass,
       "/exposed_communication/seconds_max"},
      {"exposed_communication_share", "exposed", percent, of_pass, "/exposed_communication/share"},
      {"overlapped_share", "overlapped", percent, of_pass, "/exposed_communication/overlapped_share"},
      {"compute_only_seconds", nullptr, milliseconds, of_pass, "/exposed_communication/compute_only_seconds"},
      {"communication_overhead_share", nullptr, percent, of_pass,
       "/exposed_communication/communication_overhead_share"},
      {"imbalance_of_ranks", "imbalance", ratio, of_pass, "/imbalance_degree/worker"},
      {"imbalance_of_steps", "of plan steps", ratio, of_pass, "/imbalance_degree/step"},
      {"predicted_seconds", "predicted ms", milliseconds, of_pass, "/predicted/seconds"},
      {"predicted_exposed_communication_seconds", nullptr, milliseconds, of_pass,
       "/predicted/exposed_communication_seconds"},
      {"measured_over_predicted", "measured / predicted", ratio, of_pass,
       "/predicted/measured_over_predicted"},
      {"theoretical_maximum_speedup", "max speed-up", ratio, of_pass,
       "/striped_attention/theoretical_maximum_speedup"},
      {"measured_speedup", "speed-up", ratio, of_pass, "/striped_attention/measured_speedup"},
      {"speedup_at_equal_rate", "at equal rate", ratio, of_pass, "/striped_attention/speedup_at_equal_rate"},
      {"date", nullptr, text, of_case, "/run/date"},
      {"host", nullptr, text, of_case, "/run/host"},
      {"cores_per_rank", nullptr, ratio, of_case, "/run/cores_per_rank"},
      {"check_passed", "check", text, of_case, "/check/passed"},
      {"check_method", nullptr, text, of_case, "/check/method"},
  });
  return all;
}

json value_of(const ResultColumn& column, const json& of_case, const std::string& pass) {
  const json::json_pointer pointer(column.pointer);
  if (!column.of_pass) return of_case.contains(pointer) ? of_case.at(pointer) : json();
  if (*column.pointer == '\0') return pass;
  const json& here = of_case.at(pass);
  return here.contains(pointer) ? here.at(pointer) : json();
}

std::string text_of(const ResultColumn& column, const json& value) {
  if (value.is_null()) return "–";
  if (value.is_boolean() && std::string(column.name) == "check_passed")
    return value.get<bool>() ? "passed" : "FAILED";
  if (value.is_boolean()) return value.get<bool>() ? "on" : "off";
  switch (column.form) {
    case ResultColumn::Form::text:
      return value.get<std::string>();
    case ResultColumn::Form::count:
      return fmt::format("{}", value.get<std::int64_t>());
    case ResultColumn::Form::milliseconds:
      return fmt::format("{:.2f}", 1e3 * value.get<double>());
    case ResultColumn::Form::ratio:
      return fmt::format("{:.3f}", value.get<double>());
    case ResultColumn::Form::percent:
      return fmt::format("{:.1f}%", 100 * value.get<double>());
    case ResultColumn::Form::bytes:
      return bytes_text(value.get<std::int64_t>());
  }
  return {};
}

std::string to_csv(const std::vector<json>& cases) {
  std::string text;
  const auto line = [&](const auto& field_of) {
    std::vector<json> fields;
    for (const ResultColumn& column : columns()) fields.push_back(field_of(column));
    text += app::csv_line(fields);
  };
  line([](const ResultColumn& column) { return json(column.name); });
  for_passes(cases, [&](const json& of_case, const std::string& pass) {
    line([&](const ResultColumn& column) { return value_of(column, of_case, pass); });
  });
  return text;
}

}  // namespace annulus::bench
