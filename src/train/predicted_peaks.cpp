#include "train/predicted_peaks.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "train/report.hpp"

namespace annulus::train {

PredictedPeaks predicted_peaks(const forecast::UpdateMemory& memory, bool on_gpu) {
  PredictedPeaks peaks;
  peaks.moments = memory.moments;
  peaks.host.peak = memory.host.categories;
  peaks.host.total_peak = memory.host.total;
  peaks.device.peak = memory.device.categories;
  peaks.device.total_peak = memory.device.total;
  const forecast::PeakBytes& most = on_gpu ? memory.device : memory.host;
  peaks.moment = most.moment;
  peaks.at_once = most.at_once;
  return peaks;
}

PredictedPeaks predicted_peaks(comm::Communicator& world, MemoryPlanner& planner, const Config& config) {
  PredictedPeaks peaks =
      predicted_peaks(planner.memory(config.memory, world.rank() % planner.context()), planner.on_gpu());
  std::vector<std::int64_t> values;
  const auto visit = [&](const auto& action) {
    for (MemoryUse* use : {&peaks.host, &peaks.device}) {
      action(use->total_peak);
      for (std::int64_t& peak : use->peak) action(peak);
    }
  };
  visit([&](std::int64_t value) { values.push_back(value); });
  world.all_reduce(Queue(HostExec()), values.data(), values.size(), DType::i64, comm::ReduceOp::max);
  auto next = values.begin();
  visit([&](std::int64_t& value) { value = *next++; });
  return peaks;
}

std::string PredictedPeaks::text() const {
  const MemoryUse& most = device.total_peak > 0 ? device : host;
  return fmt::format(
      "predicted peak of a rank's {} memory: {} ({}), most in the part '{}' of an optimizer step",
      device.total_peak > 0 ? "GPU" : "host", bytes_text(most.total_peak), bytes_text(at_once), moment);
}

nlohmann::json to_json(const PredictedPeaks& peaks) {
  nlohmann::json json = to_json(peaks.host);
  if (peaks.device.total_peak > 0) json["device"] = to_json(peaks.device);
  return json;
}

nlohmann::json moments_json(const std::vector<forecast::MomentMemory>& moments) {
  const auto bytes_json = [](const MemoryBytes& bytes) {
    nlohmann::json json = nlohmann::json::object();
    for (int i = 0; i < memory_category_count; ++i)
      json[std::string(name_of(static_cast<MemoryCategory>(i)))] = bytes[static_cast<std::size_t>(i)];
    return json;
  };
  nlohmann::json json = nlohmann::json::array();
  for (const forecast::MomentMemory& moment : moments)
    json.push_back({{"moment", moment.moment},
                    {"device", bytes_json(moment.device)},
                    {"host", bytes_json(moment.host)}});
  return json;
}

}  // namespace annulus::train
