#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <annulus/measure/sampling.hpp>

#include "bench/kernels/case.hpp"

namespace annulus::bench {

/// One kernel, checked and timed.
struct KernelResult {
  std::string name, dtype;
  double bytes = 0;
  measure::Sample seconds, copy_seconds;  ///< of the kernel, and of the faster copy of as many bytes
  double error = 0, most_error = 0;       ///< found, and what rounding explains

  double bandwidth() const { return bytes / seconds.median; }            ///< bytes/s
  double copy_bandwidth() const { return bytes / copy_seconds.median; }  ///< bytes/s, read and written
  double share() const { return copy_seconds.median / seconds.median; }  ///< of the copy's bandwidth
  bool passed() const { return error <= most_error; }
};

struct KernelsReport {
  KernelSizes sizes;
  std::string execution_space, device;  ///< device: its name, where Kokkos knows one
  int ranks = 1, threads = 1;
  std::vector<KernelResult> results;
};

std::string to_table(const KernelsReport& report);
/// As docs/formats/annulus-bench.md describes it.
nlohmann::json to_json(const KernelsReport& report);

}  // namespace annulus::bench
