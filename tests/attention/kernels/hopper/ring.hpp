#pragma once

#include <optional>

#include "case.hpp"
#include "check.hpp"

/// How fast the blocks of a ring are backward, with traffic of others beside them.
namespace annulus::hopper_kernels {

/// Loads `count` vectors from one array to the other until `stop` is not 0. `all_poll`: each thread reads
/// `stop` again and again, as kernels do that wait for a flag in the host's memory.
__global__ void make_traffic(const float4* from, float4* to, std::size_t count, const volatile int* stop,
                             bool all_poll) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  __shared__ int stopped;
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;;) {
    if (all_poll && *stop != 0) return;
    if (!all_poll) {
      if (threadIdx.x == 0) stopped = *stop;
      __syncthreads();
      const bool ends = stopped != 0;
      __syncthreads();
      if (ends) return;
    }
    for (int n = 0; n < 128; ++n, i = (i + step) % count) to[i] = from[i];
  }
}

/// Traffic while the object lives: "none", "device:BLOCKS" (copies in the GPU's memory) or "host:BLOCKS" (the
/// same, and each thread polls the host's memory).
class Traffic {
 public:
  explicit Traffic(const std::string& text) {
    int blocks = 0;
    const bool host = std::sscanf(text.c_str(), "host:%d", &blocks) == 1;
    if (!host && std::sscanf(text.c_str(), "device:%d", &blocks) != 1) return;
    constexpr std::size_t count = std::size_t{1} << 24;
    from_.emplace(count);
    to_.emplace(count);
    check(cudaHostAlloc(&stop_, sizeof(int), cudaHostAllocMapped), "allocate");
    *stop_ = 0;
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "make a stream");
    check(cudaDeviceSynchronize(), "wait");
    make_traffic<<<static_cast<unsigned>(blocks), 512, 0, stream_>>>(from_->data(), to_->data(), count, stop_,
                                                                     host);
    check(cudaGetLastError(), "start traffic");
  }
  Traffic(const Traffic&) = delete;
  ~Traffic() {
    if (stop_ == nullptr) return;
    *reinterpret_cast<volatile int*>(stop_) = 1;
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
    cudaFreeHost(stop_);
  }

 private:
  std::optional<DeviceArray<float4>> from_, to_;
  int* stop_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

__global__ void count_differences(const int* a, const int* b, std::size_t count, int* differences) {
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x)
    if (a[i] != b[i]) atomicAdd(differences, 1);
}

/// The blocks that a rank in the middle of a ring computes under the causal mask: its own keys with its own
/// queries, and with those of an earlier and of a later rank. Returns whether dQ had the same bits in all
/// calls in the fixed order.
inline bool time_ring(int head_dim, std::int64_t tokens, int ranks, int heads, int kv_heads, int layout,
                      int free_sms, const std::string& traffic, int rounds) {
  MaskCase mask;
  mask.rule.tokens = tokens;
  mask.rule.right = 0;
  const int rank = ranks / 2;
  const PositionMap keys = shard_of(tokens, layout, ranks, rank);
  bool repeats = true;
  for (const int other : {rank, rank - 1, rank + 1}) {
    if (other < 0 || other >= ranks) continue;
    // Only rows that the mask leaves something of, as plans have them.
    PositionMap queries = shard_of(tokens, layout, ranks, other);
    queries = queries.slice({queries.rows_below(keys.front()), queries.count});
    if (queries.empty()) continue;
    const PositionMap seen = keys.slice({0, keys.rows_below(queries.back() + 1)});
    double pairs = 0;
    for (std::int64_t i = 0; i < queries.count; ++i)
      pairs += static_cast<double>(seen.rows_below(queries(i) + 1));
    Case<bfloat16> c(mask, queries, seen, 1, heads, kv_heads, head_dim, 0, 1);
    for (const DeviceArray<float>* zero : {&c.lse, &c.d, &c.dq, &c.dk, &c.dv}) zero->fill_bytes(0);
    c.forward({.fresh_out = true});
    const auto run = [&](bool deterministic) {
      c.backward({.free_sms = free_sms, .deterministic = deterministic, .fresh_dq = true});
    };
    run(false);  // loads the kernels, which a kernel that does not end would hold up
    run(true);
    DeviceArray<float> first(c.dq.count());
    DeviceArray<int> differences(1);
    differences.fill_bytes(0);
    // CUDA loads a kernel when it starts first, and would wait for the traffic, which does not end.
    count_differences<<<1, 32>>>(nullptr, nullptr, 0, differences.data());
    check(cudaMemcpy(first.data(), c.dq.data(), first.count() * sizeof(float), cudaMemcpyDeviceToDevice),
          "copy");
    cudaEvent_t begin, end;
    check(cudaEventCreate(&begin), "make an event");
    check(cudaEventCreate(&end), "make an event");
    std::vector<float> times[2];
    {
      const Traffic beside(traffic);
      for (int i = 0; i < 2 * rounds; ++i) {  // in turns
        check(cudaEventRecord(begin), "record");
        run(i % 2 == 1);
        check(cudaEventRecord(end), "record");
        check(cudaEventSynchronize(end), "run");
        check(cudaEventElapsedTime(&times[i % 2].emplace_back(), begin, end), "time");
        if (i % 2 == 1)
          count_differences<<<1024, 256>>>(reinterpret_cast<const int*>(first.data()),
                                           reinterpret_cast<const int*>(c.dq.data()), first.count(),
                                           differences.data());
      }
    }
    for (auto& sorted : times) std::sort(sorted.begin(), sorted.end());
    const double any = times[0][times[0].size() / 2], fixed = times[1][times[1].size() / 2];
    const bool same = differences.host()[0] == 0;
    repeats = repeats && same;
    std::printf(
        "queries of rank %d, %lld, keys of rank %d, %lld: any order %.2f ms, fixed order %.2f ms "
        "(%.3f), %.0f and %.0f TFLOP/s, %s\n",
        other, static_cast<long long>(queries.count), rank, static_cast<long long>(seen.count), any, fixed,
        fixed / any, 10e-9 * head_dim * heads * pairs / any, 10e-9 * head_dim * heads * pairs / fixed,
        same ? "same bits" : "OTHER BITS");
    std::fflush(stdout);
  }
  return repeats;
}

}  // namespace annulus::hopper_kernels
