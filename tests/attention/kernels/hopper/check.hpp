#pragma once

#include <array>
#include <memory>
#include <type_traits>
#include <vector>

#include <annulus/base/dtype.hpp>

#include "attention/kernels/hopper/tile/shapes.hpp"
#include "case.hpp"
#include "reference.hpp"

/// Random cases against double precision.
namespace annulus::hopper_kernels {

using namespace annulus::attention;
namespace hopper = annulus::attention::hopper;

/// |a − b| / |b| in the 2-norm; where b is all but zero, of numbers of size `floor`.
inline double relative_error(const std::vector<float>& a, const std::vector<double>& b, double floor) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isinf(b[i]) && a[i] == b[i]) continue;
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return a.empty() ? 0.0 : std::sqrt(difference / std::max(norm, floor * floor * double(a.size())));
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline PositionMap shard_of(std::int64_t tokens, int layout, int ranks, int rank) {
  const std::int64_t chunk = tokens / (2 * ranks);
  if (layout == 1) return {rank * chunk, (2 * ranks - 1 - 2 * rank) * chunk, 1, chunk, 0, 2 * chunk};
  if (layout == 2) return {rank, ranks, 1, 1, 0, (tokens - rank + ranks - 1) / ranks};
  return {rank * (tokens / ranks), 0, 1, tokens / ranks, 0, tokens / ranks};
}

/// A sequence in runs of random lengths that ranks have at random, as the layout `balanced` deals it out.
class RandomCut {
 public:
  RandomCut(std::int64_t tokens, int ranks, std::mt19937& random) : runs_(static_cast<std::size_t>(ranks)) {
    std::vector<std::int64_t> rows(runs_.size());
    std::size_t before = runs_.size();  // who has the run before
    for (std::int64_t position = 0, length = 0; position < tokens; position += length) {
      length = std::min<std::int64_t>(1 + random() % (random() % 3 == 0 ? 300 : 40), tokens - position);
      const std::size_t rank = random() % runs_.size();
      if (rank != before) runs_[rank].push_back({rows[rank], position});
      rows[rank] += length;
      before = rank;
    }
    for (std::size_t rank = 0; rank < runs_.size(); ++rank) {
      runs_[rank].push_back({rows[rank], tokens});
      on_device_.push_back(std::make_unique<DeviceArray<RowRun>>(runs_[rank]));
    }
  }
  PositionMap shard(int rank) const {
    const std::vector<RowRun>& runs = runs_[static_cast<std::size_t>(rank)];
    PositionMap map;
    map.count = runs.back().row;
    map.runs = runs.data();
    map.device_runs = on_device_[static_cast<std::size_t>(rank)]->data();
    map.run_count = static_cast<std::int64_t>(runs.size()) - 1;
    return map;
  }

 private:
  std::vector<std::vector<RowRun>> runs_;  // of each rank, with the one behind its last row
  std::vector<std::unique_ptr<DeviceArray<RowRun>>> on_device_;
};

template <class T>
bool check_case(int head_dim, std::mt19937& random) {
  const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const int kind = draw(14);  // the last two: listed keys
  const bool narrow_window = kind == 10;
  // A long case has few heads: the reference takes as long for it as for some short ones.
  const bool is_long = draw(10) == 0;
  const int batch = is_long ? 1 : 1 + draw(2), kv_heads = is_long ? 1 : 1 + draw(3),
            group = narrow_window ? 4 * (is_long ? 1 : 1 + draw(2))
                    : kind >= 12  ? 1
                                  : std::max(draw(is_long ? 3 : 5), 1);
  MaskCase mask;
  // Tables of block lists take 32 words at once, the bits of 32,768 rows.
  const bool is_very_long = is_long && (kind == 8 || kind == 9);
  mask.rule.tokens = is_very_long ? 128 * (260 + draw(30)) : is_long ? 904 + draw(2200) : 4 + draw(900);
  const std::int64_t tokens = mask.rule.tokens;
  if (kind >= 2) mask.rule.right = 0;
  if (kind == 3 || kind == 4) mask.rule.left = draw(static_cast<int>(tokens));
  if (kind == 4) mask.rule.right = draw(static_cast<int>(tokens));
  if (kind == 5) mask.rule.dilation = 2 + draw(4);
  if (kind == 6) mask.documents = {0, 1 + draw(static_cast<int>(tokens) / 2), tokens};
  if (kind == 7 || kind == 1) mask.list_blocks(7 + draw(250), 30, random);
  if (narrow_window) {
    mask.rule.left = draw(200);
    if (draw(2) == 0) mask.rule.right = draw(50);
    if (draw(3) == 0) mask.documents = {0, 1 + draw(static_cast<int>(tokens) / 2), tokens};
  }
  if (kind == 8 || kind == 9) {
    int heads_of_list = 1 + draw(group);
    while (group % heads_of_list != 0) --heads_of_list;
    mask.list_blocks(is_very_long || draw(2) == 0 ? 64 : 7 + draw(250), 30, random,
                     std::int64_t{batch} * kv_heads * group / heads_of_list, heads_of_list);
  }
  if (kind == 11) {
    int heads_of_list = 1 + draw(group);
    while (group % heads_of_list != 0) --heads_of_list;
    const int sizes[] = {32, 64, 128, 7 + draw(250)};
    mask.list_blocks_of_queries(sizes[draw(4)], 5 + draw(30), draw(2) == 0 ? 1 : 50, random,
                                std::int64_t{batch} * kv_heads * group / heads_of_list, heads_of_list);
  }
  if (kind >= 12) {
    const std::int64_t heads = std::int64_t{batch} * kv_heads;
    mask.list_blocks(64, 20, random, heads, 1);
    mask.list_keys(1 + draw(static_cast<int>(std::min<std::int64_t>(tokens, 600))), heads, random);
  }
  const int layout = draw(4), ranks = 1 + draw(2);  // the last one: runs
  const RandomCut cut(tokens, ranks, random);
  const auto any_shard = [&] {
    return layout == 3 ? cut.shard(draw(ranks)) : shard_of(tokens, layout, ranks, draw(ranks));
  };
  const PositionMap q_map = any_shard(), kv_map = mask.key_map(any_shard());
  if (q_map.count <= 0 || kv_map.count <= 0) return true;
  const hopper::LaunchOptions options{draw(2) * draw(130), draw(4) != 0, draw(2) != 0, draw(2) != 0,
                                      draw(2) != 0};
  const int gap = draw(2) * 8 * (1 + draw(6));
  const bool bf16 = std::is_same_v<T, bfloat16>, lists = mask.rule.block_size > 0;
  const bool capped =
      bf16 && !lists && hopper::has_capped_tiles(static_cast<std::size_t>(head_dim)) && draw(3) == 0;
  const float soft_cap = capped ? (draw(2) == 0 ? 50.0f : 1.0f + static_cast<float>(draw(4))) : 0.0f;
  Case<T> c(mask, q_map, kv_map, batch, kv_heads * group, kv_heads, head_dim, gap, random(), soft_cap);
  const bool with_sinks =
      bf16 && !lists && !capped && hopper::has_sink_tiles(static_cast<std::size_t>(head_dim)) && draw(2) == 0;
  const DeviceArray<T> all_sinks(static_cast<std::size_t>(kv_heads) * group);
  fill_normal(all_sinks, random());
  const T* const sinks = with_sinks ? all_sinks.data() : nullptr;
  const bool in_sections = draw(2) == 0 && !lists && mask.rule.dilation == 1;
  const std::int64_t keys = in_sections ? 128 * (1 + draw(4)) : 0;  // of a launch
  if (!c.applies() || (lists && !hopper::takes_block_lists(static_cast<std::size_t>(head_dim)))) return true;

  const auto& in = c.input();
  const auto blocks = [](std::size_t threads) {
    return static_cast<unsigned>(ceil_divide(threads, std::size_t{64}));
  };
  const int v_dim = hopper::v_columns(head_dim);
  const std::size_t q_rows = c.lse.count(), kv_rows = c.dk.count() / c.rows.width();
  DeviceArray<double> out(q_rows * v_dim), lse(q_rows), dq(q_rows * head_dim), dk(kv_rows * head_dim),
      dv(kv_rows * v_dim);
  reference_forward<T><<<blocks(lse.count()), 64>>>(in, sinks, out.data(), lse.data());
  check(cudaGetLastError(), "reference");
  // What holds nothing yet is NaN, so that whoever reads it is found out.
  const auto start_forward = [&] {
    c.v_rows.fill_bytes(c.out, options.fresh_out ? 0xff : 0);
    if (options.fresh_out) {
      c.lse.fill_bytes(0xff);
    } else {
      check(cudaMemcpy(c.lse.data(), std::vector<float>(c.lse.count(), -INFINITY).data(), c.lse.count() * 4,
                       cudaMemcpyHostToDevice),
            "copy");
    }
  };
  start_forward();
  c.forward(options, {}, sinks, keys);
  const std::vector<float> out_found = c.v_rows.host(c.out), lse_found = c.lse.host();
  const std::vector<double> out_expected = out.host(), lse_expected = lse.host();
  {  // D of the exact output
    std::vector<float> d(c.d.count());
    const auto d_out = c.v_rows.host(c.d_out);
    for (std::size_t i = 0; i < d.size(); ++i) {
      double sum = 0;
      for (int column = 0; column < v_dim; ++column)
        sum += out_expected[i * v_dim + column] * static_cast<float>(d_out[i * v_dim + column]);
      d[i] = static_cast<float>(sum);
    }
    check(cudaMemcpy(c.d.data(), d.data(), d.size() * 4, cudaMemcpyHostToDevice), "copy");
  }
  reference_backward<T, true><<<blocks(lse.count()), 64>>>(c.backward_problem(), dq.data(), nullptr);
  reference_backward<T, false><<<blocks(kv_rows), 64>>>(c.backward_problem(), dk.data(), dv.data());
  check(cudaGetLastError(), "reference");
  const auto run_backward = [&](int free_sms) {
    c.rows.fill_bytes(c.dq, options.fresh_dq ? 0xff : 0);
    c.rows.fill_bytes(c.dk, options.fresh_dkv ? 0xff : 0);
    c.v_rows.fill_bytes(c.dv, options.fresh_dkv ? 0xff : 0);
    hopper::LaunchOptions now = options;
    now.free_sms = free_sms;
    c.backward(now);
    return std::array<std::vector<float>, 3>{c.rows.host(c.dq), c.rows.host(c.dk), c.v_rows.host(c.dv)};
  };
  const auto found = run_backward(options.free_sms);
  bool repeats = true;
  if (options.deterministic) {
    const auto again = run_backward(37);
    for (int i = 0; i < 3; ++i) repeats = repeats && same_bits(found[i], again[i]);
  }
  bool finishes = true;
  const bool finished_too = draw(3) == 0;
  if (finished_too) {  // from any running result
    const unsigned seed = random();
    const auto start = [&] {
      if (options.fresh_out) return start_forward();
      fill_normal(c.out, seed);
      c.v_rows.spoil(c.out);
      fill_normal(c.lse, seed + 1);
    };
    start();
    c.forward(options, {}, sinks, keys);
    const std::vector<float> out_then = c.v_rows.host(c.out), lse_then = c.lse.host();
    start();
    const DeviceArray<T> joined(q_rows * v_dim);
    joined.fill_bytes(0xff);
    c.forward(options, c.joined(joined.data()), sinks, keys);
    finishes = same_bits(c.lse.host(), lse_then) && c.is_rounded(joined.host(), out_then);
  }
  const double errors[] = {
      relative_error(out_found, out_expected, 1e-2), relative_error(lse_found, lse_expected, 1e-2),
      relative_error(found[0], dq.host(), 1e-2), relative_error(found[1], dk.host(), 1e-2),
      relative_error(found[2], dv.host(), 1e-2)};
  // The tangent of a capped score is off by 2⁻¹¹ of it; scores are of size 1, few larger than 4.
  const double of_tangent = capped ? 4.0 / 2048 : 0.0;
  const double tolerance = (bf16 ? 5e-3 : 7e-4) + of_tangent;
  bool right = repeats && finishes && errors[1] < 1e-6 + of_tangent;
  for (const double error : errors) right = right && error < tolerance;
  std::printf(
      "%s %s d%d batch %d heads %d/%d tokens %lld mask %d layout %d/%d rows %lld×%lld gap %d "
      "cap %g%s%s%s%s%s%s%s: out %.1e "
      "lse %.1e dq %.1e dk %.1e dv %.1e%s%s\n",
      right ? "right" : "WRONG", std::is_same_v<T, bfloat16> ? "bf16" : "f16", head_dim, batch,
      kv_heads * group, kv_heads, static_cast<long long>(tokens), kind, layout, ranks,
      static_cast<long long>(q_map.count), static_cast<long long>(kv_map.count), gap, soft_cap,
      with_sinks ? " sinks" : "", in_sections ? " key-sections" : "",
      options.deterministic ? "" : " any-order", options.fresh_out ? " fresh-out" : "",
      options.fresh_dq ? " fresh-dq" : "", options.fresh_dkv ? " fresh-dkv" : "",
      finished_too ? " finished" : "", errors[0], errors[1], errors[2], errors[3], errors[4],
      repeats ? "" : " OTHER BITS AGAIN", finishes ? "" : " FINISHED OTHERWISE");
  std::fflush(stdout);
  return right;
}

/// `only`: the head dimension of all cases, or 0.
inline int check_cases(int cases, unsigned seed, int only) {
  std::mt19937 random(seed);
  int wrong = 0;
  for (int i = 0; i < cases; ++i) {
    constexpr std::array head_dims{64, 80, 128, 112, 256, 120, 192, 64, 96, 72, 104, 88};
    const int head_dim = only != 0 ? only : head_dims[static_cast<std::size_t>(i) % head_dims.size()];
    const bool bf16 = head_dim == 192 || random() % 4 != 0;
    wrong += !(bf16 ? check_case<bfloat16>(head_dim, random) : check_case<float16>(head_dim, random));
  }
  std::printf("%d of %d cases wrong (seed %u)\n", wrong, cases, seed);
  return wrong > 0 ? 1 : 0;
}

}  // namespace annulus::hopper_kernels
