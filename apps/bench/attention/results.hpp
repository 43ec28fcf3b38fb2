#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/attention/cases/case.hpp"
#include "bench/attention/cases/options.hpp"
#include "bench/attention/measure/report.hpp"

namespace annulus::bench {

/// What a run has found so far, on rank 0, and the files that it is written to. The object of a case
/// (to_json) is all that is kept of it.
class Results {
 public:
  /// Reads what --json holds, with --resume. Throws Error when another build wrote it.
  explicit Results(const SweepOptions& options, bool is_sweep);

  /// The object that --json held of this case; null when it is to be run: where options, machinery or what
  /// predictions stand on were others, where the case was not checked as this run checks or failed its check,
  /// where it lacks what --compute-only measures, and where tensors are to be dumped.
  const nlohmann::json* earlier(const BenchCase& c, const Machinery& on,
                                const std::string& prediction_source) const;

  /// Adds a case, or a combination that is refused, and writes all files, each atomically.
  void add(nlohmann::json of_case);
  /// Says of the case at `index` what was asked with auto and became it.
  void mark(std::size_t index, const std::string& asked);
  void refuse(const AttentionOptions& options, const std::string& reason);

  const std::vector<nlohmann::json>& cases() const { return cases_; }
  const std::vector<nlohmann::json>& unsupported() const { return unsupported_; }

 private:
  void write() const;

  const SweepOptions& options_;
  bool is_sweep_;
  std::vector<nlohmann::json> earlier_, cases_, unsupported_;
};

}  // namespace annulus::bench
