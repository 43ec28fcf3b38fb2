#pragma once

#include <algorithm>
#include <annulus/base/division.hpp>

#include "attention/kernels/hopper/launch/launch.hpp"
#include "attention/kernels/hopper/ptx/tensor_map.hpp"
#include "attention/kernels/hopper/schedule/tile_scheduler.hpp"
#include "attention/kernels/hopper/schedule/tile_tables.hpp"

/// What the launches of both passes share.
namespace annulus::attention::hopper {

#define ANNULUS_RETURN_ON_ERROR(call) \
  if (const cudaError_t error = (call); error != cudaSuccess) return error

/// Starts a persistent kernel of `Tile`: on each SM that it may have as many blocks as run there at once.
template <class Tile, class Kernel, class Parameters>
cudaError_t launch_persistent(Kernel kernel, int bytes, const Parameters& parameters,
                              const LaunchOptions& options, cudaStream_t stream) {
  int device = 0, sms = 0;
  ANNULUS_RETURN_ON_ERROR(cudaGetDevice(&device));
  ANNULUS_RETURN_ON_ERROR(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  // More than 48 KiB of shared memory has to be asked for, once for each device.
  ANNULUS_RETURN_ON_ERROR(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const std::int64_t work = parameters.order.count();
  const std::int64_t blocks = std::int64_t{std::max(sms - options.free_sms, 1)} * Tile::blocks_of_sm;
  kernel<<<static_cast<unsigned>(std::min(work, blocks)), Tile::threads, static_cast<std::size_t>(bytes),
           stream>>>(parameters);
  return cudaGetLastError();
}

/// `most`: heads in a section. Fewer are taken where sections can then be equal: a last one of few heads has
/// too few tiles for all SMs (10 + 10 + 10 + 2 heads of 8192 rows took 4 % longer than 4 × 8).
inline TileOrder tile_order(int heads, std::int64_t tiles, std::int64_t most, bool last_tile_first) {
  const int whole = static_cast<int>(std::clamp<std::int64_t>(most, 1, heads));
  int in_section = whole;
  while (heads % in_section != 0 && 2 * in_section > whole) --in_section;
  if (heads % in_section != 0) in_section = whole;
  return {heads, static_cast<int>(tiles), in_section, last_tile_first};
}

}  // namespace annulus::attention::hopper
