#include "base/kokkos/execution/profile.hpp"

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <annulus/base/error.hpp>

#if defined(KOKKOS_ENABLE_CUDA) && __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define ANNULUS_HAS_NVTX
#endif

namespace annulus {

namespace {

#ifdef ANNULUS_HAS_NVTX

void begin(const char* name, std::uint32_t, std::uint64_t*) {
  nvtxRangePushA(name);
}
void end(std::uint64_t) {
  nvtxRangePop();
}

void start_nvtx() {
  namespace tools = Kokkos::Tools::Experimental;
  tools::set_request_tool_settings_callback(
      [](std::uint32_t, Kokkos_Tools_ToolSettings* settings) { settings->requires_global_fencing = false; });
  tools::set_push_region_callback([](const char* name) { nvtxRangePushA(name); });
  tools::set_pop_region_callback([] { nvtxRangePop(); });
  tools::set_begin_parallel_for_callback(begin);
  tools::set_end_parallel_for_callback(end);
  tools::set_begin_parallel_reduce_callback(begin);
  tools::set_end_parallel_reduce_callback(end);
  tools::set_begin_parallel_scan_callback(begin);
  tools::set_end_parallel_scan_callback(end);
  tools::set_begin_fence_callback(begin);
  tools::set_end_fence_callback(end);
  tools::set_begin_deep_copy_callback([](Kokkos_Profiling_SpaceHandle, const char* to, const void*,
                                         Kokkos_Profiling_SpaceHandle, const char*, const void*,
                                         std::uint64_t) { nvtxRangePushA(to); });
  tools::set_end_deep_copy_callback([] { nvtxRangePop(); });
}

#else

void start_nvtx() {
  fail(
      "ANNULUS_PROFILE=nvtx: this build has no NVTX, which comes with the CUDA toolkit: use the build cuda, "
      "or name a "
      "tool of Kokkos Tools in KOKKOS_TOOLS_LIBS");
}

#endif

}  // namespace

void start_profile() {
  const char* text = std::getenv("ANNULUS_PROFILE");
  const std::string_view value = text == nullptr ? "" : text;
  if (value.empty()) return;
  require(value == "nvtx", "ANNULUS_PROFILE='{}' is not known: set it to nvtx, or unset it", value);
  start_nvtx();
}

}  // namespace annulus
