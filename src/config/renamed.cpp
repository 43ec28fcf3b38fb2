#include <annulus/config/renamed.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <mutex>
#include <set>
#include <utility>

#include <annulus/base/printable.hpp>

namespace annulus::config {
namespace {

constexpr std::array table = {
    Renamed{Names::configuration, "run.stall_limit", "run.stall_timeout"},
    Renamed{Names::configuration, "parallel.nccl_blocks", "parallel.max_ctas"},

    Renamed{Names::cluster_file, "inside", "intra_node"},
    Renamed{Names::cluster_file, "between", "inter_node"},
    Renamed{Names::cluster_file, "inter_node.rails", "inter_node.nics_per_node"},

    Renamed{Names::options, "--topology", "--cluster"},
    Renamed{Names::options, "--stall-limit", "--stall-timeout"},
    Renamed{Names::options, "--nccl-blocks", "--max-ctas"},
    Renamed{Names::options, "--no-stand-in", "--real-kernels"},
    Renamed{Names::options, "--least-bytes", "--min-bytes"},
    Renamed{Names::options, "--most-bytes", "--max-bytes"},

    Renamed{Names::bench_kernels, "rms_norm_again", "rms_norm_recompute"},
    Renamed{Names::bench_kernels, "split_rotate", "split_qkv_rope"},
    Renamed{Names::bench_kernels, "split_rotate_backward", "split_qkv_rope_backward"},
};

struct Warnings {
  std::mutex mutex;
  std::set<std::string> told;
  std::function<void(const std::string&)> write;
};

Warnings& warnings() {
  static Warnings all;
  return all;
}

}  // namespace

std::span<const Renamed> renamed() {
  return table;
}

std::optional<std::string_view> new_name(Names names, std::string_view before) {
  const auto* const found = std::ranges::find_if(
      table, [&](const Renamed& row) { return row.names == names && row.before == before; });
  if (found == table.end()) return std::nullopt;
  return found->now;
}

void warn_old_name(std::string_view where, std::string_view before, std::string_view now) {
  const std::string text = fmt::format("{}: {} is an old name: write {}", where, before, now);
  Warnings& all = warnings();
  const std::lock_guard lock(all.mutex);
  if (!all.told.insert(text).second) return;
  if (all.write)
    all.write(text);
  else
    std::fprintf(stderr, "warning: %s\n", printable(text).c_str());
}

void set_old_name_warnings(std::function<void(const std::string& text)> write) {
  Warnings& all = warnings();
  const std::lock_guard lock(all.mutex);
  all.write = std::move(write);
  all.told.clear();
}

}  // namespace annulus::config
