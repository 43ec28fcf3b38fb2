#pragma once

#include <fmt/format.h>

#include <string>

#include <annulus/attention/kernels/local.hpp>
#include <annulus/base/dtype.hpp>

namespace annulus::training {

/// Device, type and attention kernel: "NVIDIA H200 in bf16, attention kernel hopper".
template <class T, class Exec>
std::string device_text(const Exec& exec, attention::Kernel kernel) {
  std::string device = Exec::name();
  if constexpr (requires { exec.cuda_device_prop(); }) device = exec.cuda_device_prop().name;
  return fmt::format("{} in {}, attention kernel {}", device, name_of(dtype_of<T>), name_of(kernel));
}

}  // namespace annulus::training
