#pragma once

#include <unistd.h>

#include <chrono>

#include <annulus/base/dtype.hpp>

#include "attention/kernels/hopper/tile/shapes.hpp"
#include "case.hpp"

/// How fast a case runs.
namespace annulus::hopper_kernels {

/// Medians of one call.
struct CallTime {
  double seconds;       ///< between events before and behind it
  double host_seconds;  ///< until it returned, with everything queued
};

template <class T>
T median(std::vector<T> of) {
  std::sort(of.begin(), of.end());
  return of[of.size() / 2];
}

/// Lets the GPU rest. The host does not sleep for the last hundredth of a second: its core would wake slowly,
/// which is no time of a kernel.
inline void rest(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  if (seconds > 0.01) usleep(static_cast<unsigned>((seconds - 0.01) * 1e6));
  while (Clock::now() < end) continue;
}

template <class Call>
CallTime time_of(double pause, const Call& call) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "make an event");
  check(cudaEventCreate(&end), "make an event");
  std::vector<double> times, host_times;
  for (int i = 0; i < 11; ++i) {
    rest(pause);
    check(cudaEventRecord(begin), "record");
    const auto called = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double> host = std::chrono::steady_clock::now() - called;
    check(cudaEventRecord(end), "record");
    check(cudaEventSynchronize(end), "run");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin, end), "time");
    if (i < 2) continue;
    times.push_back(milliseconds * 1e-3);
    host_times.push_back(host.count());
  }
  return {median(times), median(host_times)};
}

/// Pairs of a query and a key that a mask with one block list, or none, or blocks of each query allows a
/// head.
inline double pairs_of(const MaskRule& rule) {
  double pairs = 0;
  for (std::int64_t i = 0; i < rule.tokens; ++i) {
    const KeyRange keys = rule.keys(i);
    const auto pairs_with = [&](std::int64_t block) {
      return static_cast<double>(std::max<std::int64_t>(
          0,
          std::min(keys.end, (block + 1) * rule.block_size) - std::max(keys.begin, block * rule.block_size)));
    };
    if (rule.query_blocks != nullptr) {
      for (std::int64_t b = 0; b < rule.block_rows(); ++b)
        if (rule.query_has_block(i, b)) pairs += pairs_with(b);
      continue;
    }
    if (rule.block_row_starts == nullptr) {
      pairs += static_cast<double>((keys.end - keys.begin + keys.stride - 1) / keys.stride);
      continue;
    }
    for (std::int64_t b = rule.block_row_starts[i / rule.block_size];
         b < rule.block_row_starts[i / rule.block_size + 1]; ++b)
      pairs += pairs_with(rule.block_columns[b]);
  }
  return pairs;
}

/// Pairs of all heads where keys are listed and blocks are left out.
inline double pairs_of_listed_keys(const MaskCase& mask) {
  const MaskRule all = mask.on_host();
  double pairs = 0;
  for (std::size_t at = 0; at < mask.listed_keys.size(); ++at) {
    const MaskRule rule = all.of_list(static_cast<std::int64_t>(at) / mask.listed_keys_of_head);
    const std::int64_t key = mask.listed_keys[at];
    for (std::int64_t query = key; query < rule.tokens;
         query = (query / rule.block_size + 1) * rule.block_size)
      if (rule.allows(query, key))
        pairs += static_cast<double>(std::min((query / rule.block_size + 1) * rule.block_size, rule.tokens) -
                                     query);
  }
  return pairs;
}

inline void time_case(int head_dim, std::int64_t rows, int heads, int kv_heads, const MaskCase& mask,
                      double pause, float soft_cap) {
  double pairs = 0;  // of all heads
  const std::int64_t lists = mask.rule.block_lists;
  for (std::int64_t list = 0; list < lists && mask.listed_keys.empty(); ++list)
    pairs += pairs_of(mask.on_host().of_list(list)) * static_cast<double>(heads / lists);
  if (!mask.listed_keys.empty()) pairs = pairs_of_listed_keys(mask);
  const bool fresh_dkv = !mask.listed_keys.empty();  // as sparse attention computes columns
  const PositionMap all{0, 0, 1, rows, 0, rows};
  Case<bfloat16> c(mask, all, mask.key_map(all), 1, heads, kv_heads, head_dim, 0, 1, soft_cap);
  for (const DeviceArray<float>* zero : {&c.out, &c.lse, &c.d, &c.dq, &c.dk, &c.dv}) zero->fill_bytes(0);
  c.forward({.fresh_out = true});
  const double v_dim = hopper::v_columns(head_dim), flops = 2.0 * (head_dim + v_dim) * pairs * 1e-12,
               backward_flops = (6.0 * head_dim + 4.0 * v_dim) * pairs * 1e-12;
  const CallTime forward = time_of(pause, [&] { c.forward({}); });
  c.forward({.fresh_out = true});
  const CallTime any = time_of(pause, [&] { c.backward({.deterministic = false, .fresh_dkv = fresh_dkv}); });
  const CallTime fixed = time_of(pause, [&] { c.backward({.deterministic = true, .fresh_dkv = fresh_dkv}); });
  std::printf(
      "d%d %lld rows %d/%d heads %s cap %g: "
      "forward %.0f, backward any order %.0f, fixed order %.0f TFLOP/s; calls return after %.0f, %.0f, %.0f "
      "us\n",
      head_dim, static_cast<long long>(rows), heads, kv_heads, mask.text.c_str(), soft_cap,
      flops / forward.seconds, backward_flops / any.seconds, backward_flops / fixed.seconds,
      1e6 * forward.host_seconds, 1e6 * any.host_seconds, 1e6 * fixed.host_seconds);
  if (soft_cap > 0.0f || mask.rule.block_size > 0 ||
      !hopper::has_sink_tiles(static_cast<std::size_t>(head_dim)))
    return;
  // The first and last call of its rows, with and without sinks, in turns.
  const DeviceArray<bfloat16> sinks(static_cast<std::size_t>(heads)), finished(c.out.count());
  fill_normal(sinks, 9);
  const auto whole = [&](const bfloat16* with) {
    return time_of(pause, [&] { c.forward({.fresh_out = true}, c.joined(finished.data()), with); }).seconds;
  };
  for (int i = 0; i < 3; ++i) {
    const double without = whole(nullptr), with = whole(sinks.data());
    std::printf("  to bf16 at once: %.4f ms, with sinks %.4f ms (%.3f)\n", 1e3 * without, 1e3 * with,
                with / without);
  }
}

}  // namespace annulus::hopper_kernels
