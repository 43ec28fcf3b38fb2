#pragma once

#include <functional>
#include <string>

#include <annulus/attention/executor/attention.hpp>

namespace annulus::emulator {

/// A local kernel of given speed.
struct Spin {
  double forward = 0, backward = 0;  ///< FLOP/s, counted as simulator::flops does
  /// Multiprocessors of the device that it leaves to transfers. It takes all others, each whole: nothing runs
  /// beside it there.
  int free_sms = 0;
};

/// "600,530" in TFLOP/s. Throws Error naming `field` for anything but two positive numbers.
Spin parse_spin(const std::string& text, const std::string& field);

/// A kernel for Settings::synthetic_kernel that takes flops / rate seconds for each local kernel, on its
/// queue: on a device a kernel that watches the clock, on the host sleep. So transfers beside kernels that
/// are yet to be written can be measured. Throws Error when the device has no more SMs than are to be left
/// free, and for devices other than NVIDIA's.
std::function<void(const executor::LocalWork&)> spinning_kernel(const Spin& spin, const plan::Problem& of);

}  // namespace annulus::emulator
