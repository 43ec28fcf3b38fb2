#include "train/report.hpp"

#include <fmt/format.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>

namespace annulus::train {

namespace {

std::string clock_text(double seconds) {
  const auto s = static_cast<long>(std::lround(seconds));
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

}  // namespace

void take_maxima(comm::Communicator& world, StepResult& result) {
  // Doubles hold bytes exactly up to 2^53.
  constexpr std::size_t single = 6;  // values before the peaks
  std::array<double, single + memory_category_count> values{
      result.seconds,          result.waiting_seconds,           result.planning_seconds,
      double(result.resident), double(result.memory.total_peak), double(result.stop_signal)};
  auto& peaks = result.memory.peak;
  std::transform(peaks.begin(), peaks.end(), values.begin() + single,
                 [](std::int64_t bytes) { return double(bytes); });
  world.all_reduce(comm::Queue(Kokkos::DefaultHostExecutionSpace()), values.data(), values.size(), DType::f64,
                   comm::ReduceOp::max);
  result.seconds = values[0];
  result.waiting_seconds = values[1];
  result.planning_seconds = values[2];
  result.resident = static_cast<std::int64_t>(values[3]);
  result.memory.total_peak = static_cast<std::int64_t>(values[4]);
  result.stop_signal = static_cast<int>(values[5]);
  std::transform(values.begin() + single, values.end(), peaks.begin(),
                 [](double bytes) { return static_cast<std::int64_t>(bytes); });
}

nlohmann::json metrics_record(const StepResult& result, std::int64_t step, std::int64_t tokens_so_far,
                              std::int64_t epoch) {
  nlohmann::json peaks = {{"total", result.memory.total_peak}, {"resident", result.resident}};
  for (int i = 0; i < memory_category_count; ++i)
    peaks[std::string(name_of(static_cast<MemoryCategory>(i)))] =
        result.memory.peak[static_cast<std::size_t>(i)];
  return {{"step", step},
          {"loss", result.loss},
          {"tokens", tokens_so_far},
          {"targets", result.targets},
          {"tokens_per_second", result.tokens_per_second()},
          {"grad_norm", result.gradient_norm},
          {"lr", result.learning_rate},
          {"step_seconds", result.seconds},
          {"waiting_seconds", result.waiting_seconds},
          {"planning_seconds", result.planning_seconds},
          {"epoch", epoch},
          {"peak_memory_bytes", std::move(peaks)}};
}

std::string progress_line(const StepResult& result, std::int64_t step, std::int64_t steps,
                          double seconds_per_step) {
  return fmt::format("step {}/{}  loss {:.4f}  {:.0f} tokens/s  grad norm {:.3f}  lr {:.2e}  ETA {}", step,
                     steps, result.loss, result.tokens_per_second(), result.gradient_norm,
                     result.learning_rate, clock_text(seconds_per_step * double(steps - step)));
}

}  // namespace annulus::train
