#include "bench/links/rates.hpp"

#include <fmt/format.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <iterator>

#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/memory/pinned.hpp"
#include "bench/gemms/products.hpp"

namespace annulus::bench {

using measurement::Sample;

namespace {

/// Arrays that no cache holds, and that every rank of a node has room for.
KernelSizes sizes_of(const RateOptions& options) {
  if (options.kernels) return *options.kernels;
  KernelSizes sizes;
  sizes.tokens = options.tokens;
  if (!has_device) {
    sizes.hidden = 1024;
    sizes.ffn = 4096;
    sizes.heads = 16;
    sizes.kv_heads = 4;
    sizes.head_dim = 64;
  }
  sizes.complete();
  return sizes;
}

/// Bytes a second over all of the kernels.
double rate_of(comm::Communicator& communicator, const measurement::Sampling& sampling,
               const std::vector<KernelCase>& cases) {
  double bytes = 0, seconds = 0;
  for (const KernelCase& each : cases) {
    const ReadyKernel kernel = each.prepare();
    bytes += kernel.bytes;
    seconds += time_kernel(communicator, sampling, kernel.run).median;
  }
  return bytes / seconds;
}

template <class T>
measurement::MemoryMeasurement measure_of_type(comm::Communicator& communicator, const RateOptions& options) {
  const KernelSizes sizes = sizes_of(options);
  measurement::MemoryMeasurement memory;
  std::vector<KernelCase> kernels = row_kernels<T>(sizes);
  std::ranges::move(head_kernels<T>(sizes), std::back_inserter(kernels));
  memory.device = rate_of(communicator, options.sampling, kernels);
  std::vector<KernelCase> parameters = parameter_kernels<T>(sizes);
  std::erase_if(parameters, [](const KernelCase& each) { return each.name != "offloaded_adamw"; });
  memory.host = rate_of(communicator, options.sampling, parameters);
  return memory;
}

/// Bytes a second between the device and pinned memory, the slower direction.
double measure_host_copy(comm::Communicator& communicator, const measurement::Sampling& sampling) {
  constexpr std::size_t bytes = std::size_t{64} << 20;
  const Kokkos::DefaultExecutionSpace exec;
  const PinnedBuffer pinned(MemoryCategory::workspace, "annulus::bench::pinned", bytes);
  const Kokkos::View<std::byte*, PinnedSpace, Kokkos::MemoryUnmanaged> host(pinned.data(), bytes);
  const auto device = Owned<Kokkos::View<std::byte*, Kokkos::DefaultExecutionSpace>>::uninitialized(
      exec, MemoryCategory::workspace, "annulus::bench::copied", bytes);
  const Sample up =
                   time_kernel(communicator, sampling, [&] { Kokkos::deep_copy(exec, device.view(), host); }),
               down =
                   time_kernel(communicator, sampling, [&] { Kokkos::deep_copy(exec, host, device.view()); });
  return static_cast<double>(bytes) / std::max(up.median, down.median);
}

}  // namespace

void RateOptions::complete() {
  if (tokens == 0) tokens = has_device ? 8192 : 1024;
  require(tokens >= 1 && tokens <= (std::int64_t{1} << 30), "--tokens is {}: give a number from 1 to 2^30",
          tokens);
  require(!widths.empty(), "--width: give at least one, or leave the products out with --no-kernels");
  for (const std::int64_t width : widths)
    require(width >= 16 && width <= (std::int64_t{1} << 20), "--width {}: give a number from 16 to 2^20",
            width);
  std::ranges::sort(widths);
  std::erase_if(dtypes, [](DType type) { return type != DType::f32 && type != DType::bf16; });
}

measurement::ProductMeasurement measure_products(comm::Communicator& communicator,
                                                 const RateOptions& options) {
  measurement::ProductMeasurement result;
  for (const DType type : options.dtypes) {
    double rate = 0;  // of the width before
    for (const std::int64_t width : options.widths) {
      measurement::ProductPoint point{.dtype = type, .width = width, .tokens = options.tokens, .seconds = {}};
      if (rate > 0 && point.flops() / rate > options.sampling.seconds) {
        result.notes.push_back(
            fmt::format("{} products of weights {} wide and more take longer than {} s and were "
                        "left out",
                        name_of(type), width, options.sampling.seconds));
        break;
      }
      const LinearTimes times =
          time_linear(communicator, options.sampling, type, {options.tokens, width, width});
      for (const Sample& each : {times.y, times.dx, times.dw}) {
        point.seconds.median += each.median;
        point.seconds.min += each.min;
        point.seconds.max += each.max;
        point.seconds.repetitions = each.repetitions;
        point.seconds.iterations = each.iterations;
      }
      result.points.push_back(point);
      rate = point.rate();
    }
  }
  return result;
}

measurement::MemoryMeasurement measure_memory(comm::Communicator& communicator, const RateOptions& options) {
  if (options.dtypes.empty()) return {};
  measurement::MemoryMeasurement memory = options.dtypes.front() == DType::f32
                                              ? measure_of_type<float>(communicator, options)
                                              : measure_of_type<bfloat16>(communicator, options);
  if (has_device) memory.host_copy = measure_host_copy(communicator, options.sampling);
  return memory;
}

}  // namespace annulus::bench
