#include "bench/kernels/report.hpp"

#include <fmt/format.h>

#include <annulus/base/version.hpp>

#include "bench/common/sample_json.hpp"

namespace annulus::bench {

using nlohmann::json;

std::string to_table(const KernelsReport& report) {
  const KernelSizes& s = report.sizes;
  std::string text = fmt::format(
      "{} tokens, hidden {}, ffn {}, {} heads and {} kv heads of {}; {}, {} rank{}\n"
      "{:<22} {:>5} {:>9} {:>10} {:>8} {:>10} {:>6} {:>9}\n",
      s.tokens, s.hidden, s.ffn, s.heads, s.kv_heads, s.head_dim, report.device, report.ranks,
      report.ranks == 1 ? "" : "s", "kernel", "dtype", "MB", "ms", "GB/s", "copy GB/s", "share", "error");
  for (const KernelResult& r : report.results) {
    text += fmt::format("{:<22} {:>5} {:>9.1f} {:>10.4f} {:>8.1f} {:>10.1f} {:>5.0f}% {:>9.1e}{}\n", r.name,
                        r.dtype, r.bytes * 1e-6, r.seconds.median * 1e3, r.bandwidth() * 1e-9,
                        r.copy_bandwidth() * 1e-9, 100 * r.share(), r.error,
                        r.passed() ? "" : fmt::format("  WRONG: at most {:.1e} is rounding", r.most_error));
  }
  return text;
}

json to_json(const KernelsReport& report) {
  json kernels = json::array();
  for (const KernelResult& r : report.results) {
    kernels.push_back({{"name", r.name},
                       {"dtype", r.dtype},
                       {"bytes", r.bytes},
                       {"seconds", to_json(r.seconds)},
                       {"copy_seconds", to_json(r.copy_seconds)},
                       {"bandwidth", r.bandwidth()},
                       {"copy_bandwidth", r.copy_bandwidth()},
                       {"share", r.share()},
                       {"error", r.error},
                       {"most_error", r.most_error},
                       {"passed", r.passed()}});
  }
  const KernelSizes& s = report.sizes;
  return {{"program", "annulus-bench kernels"},
          {"version", version()},
          {"git_hash", git_hash()},
          {"config",
           {{"tokens", s.tokens},
            {"hidden", s.hidden},
            {"ffn", s.ffn},
            {"heads", s.heads},
            {"kv_heads", s.kv_heads},
            {"head_dim", s.head_dim}}},
          {"topology",
           {{"ranks", report.ranks},
            {"execution_space", report.execution_space},
            {"device", report.device},
            {"threads_per_rank", report.threads}}},
          {"kernels", kernels}};
}

}  // namespace annulus::bench
