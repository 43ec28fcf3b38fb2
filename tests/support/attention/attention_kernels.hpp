#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include <annulus/attention/kernels/local.hpp>

#include "support/exec.hpp"
#include "support/tool_notes.hpp"

/// Tells which local kernels of attention run, as Kokkos' tools see them.
namespace annulus::test {

/// Whose local kernels this process runs while the object lives: "mma", "portable", "host_simd" as
/// attention::name_of has them.
class KernelsSeen : public ToolNotes<KernelsSeen> {
 public:
  KernelsSeen() {
    Kokkos::Tools::Experimental::set_push_region_callback(see);
    Kokkos::Tools::Experimental::set_begin_parallel_for_callback(
        [](const char* name, std::uint32_t, std::uint64_t*) { see(name); });
  }
  ~KernelsSeen() {
    Kokkos::Tools::Experimental::set_push_region_callback(nullptr);
    Kokkos::Tools::Experimental::set_begin_parallel_for_callback(nullptr);
  }

  std::set<std::string> names() const {
    const auto all = labels();
    return {all.begin(), all.end()};
  }

 private:
  static void see(const char* text) {
    constexpr std::string_view module = "annulus::attention::";
    const std::string_view name = text;
    const std::size_t at = name.find(module);
    if (at == name.npos) return;
    // "mma::forward"; what all kernels share has no second colon.
    const std::string_view kernel = name.substr(at + module.size());
    const std::size_t end = kernel.find("::");
    if (end != kernel.npos) note(std::string(kernel.substr(0, end)));
  }

  // Before Kokkos starts, which else fences the device at every region: what is to overlap would not.
  static inline const bool without_fences = [] {
    Kokkos::Tools::Experimental::set_request_tool_settings_callback(
        [](std::uint32_t, Kokkos_Tools_ToolSettings* settings) {
          settings->requires_global_fencing = false;
        });
    return true;
  }();
};

/// EXPECTs what 16-bit attention at head_dim 64 and 128 runs: kernels of tensor cores and no others on a
/// device, the host's SIMD kernel there. `what` is added to the message.
inline void expect_flagship_kernels(const KernelsSeen& kernels, const std::string& what) {
  const std::set<std::string> names = kernels.names();
  EXPECT_FALSE(names.empty()) << what << ": no kernel ran";
  for (const std::string& name : names) {
    const attention::Kernel kernel = attention::parse_kernel(name);
    EXPECT_TRUE(on_host ? kernel == attention::Kernel::host_simd : attention::on_tensor_cores(kernel))
        << what << ": the kernel " << name << " ran";
  }
}

}  // namespace annulus::test
