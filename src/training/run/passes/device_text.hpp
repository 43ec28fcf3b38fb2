#pragma once

#include <fmt/format.h>

#include <string>

#include <annulus/attention/kernels/local.hpp>
#include <annulus/base/dtype.hpp>
#include <annulus/base/kokkos/queue.hpp>

#include "base/kokkos/execution/processor.hpp"

namespace annulus::training {

/// Device, type and attention kernel: "NVIDIA H200 in bf16, attention kernel hopper".
template <class T, class Exec>
std::string device_text(const Exec&, attention::Kernel kernel) {
  const std::string device = has_stream<Exec> ? gpu_model() : Exec::name();
  return fmt::format("{} in {}, attention kernel {}", device, name_of(dtype_of<T>), name_of(kernel));
}

}  // namespace annulus::training
