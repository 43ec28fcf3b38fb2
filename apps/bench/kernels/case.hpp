#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>

#include "prediction/measurement/sampling.hpp"

namespace annulus::bench {

/// The shapes that kernels of training are measured at.
struct KernelSizes {
  std::int64_t tokens = 0;  ///< 0: 32768 on a device, 1024 on the host
  int hidden = 4096, ffn = 14336, heads = 32, kv_heads = 8, head_dim = 128;

  /// Fills in what was left open. Throws Error naming the option whose value makes no sense.
  void complete();
};

/// A kernel with its operands in memory.
struct ReadyKernel {
  /// What the operation has to move between memory and processor at least: every input read and every output
  /// written once.
  double bytes = 0;
  std::function<void()> run;  ///< once; does not wait for it
  /// The largest difference, after the first run, to a double-precision reference, over rows from all parts
  /// of the result, relative to the largest number of the reference there.
  std::function<double()> error;
};

/// A kernel that can be made ready: its operands exist as long as the ReadyKernel.
struct KernelCase {
  std::string name;
  std::function<ReadyKernel()> prepare;
};

/// What training with weights and activations of type T (float or bfloat16) launches beside matrix products
/// and attention. A new kernel joins by a case in one of these.
template <class T>
std::vector<KernelCase> row_kernels(const KernelSizes& sizes);  ///< embedding, RMSNorm, SwiGLU
template <class T>
std::vector<KernelCase> head_kernels(const KernelSizes& sizes);  ///< RoPE, joining and splitting heads
template <class T>
std::vector<KernelCase> parameter_kernels(const KernelSizes& sizes);  ///< AdamW, norm of the gradients, cast

/// Two ways to copy `bytes` / 2, which reads and writes `bytes`: what the other kernels are compared with.
struct CopyKernels {
  std::function<void()> kernel, deep_copy;
};
CopyKernels copy_kernels(double bytes);

/// Times work that `run` enqueues, on all ranks at once. Collective.
measurement::Sample time_kernel(comm::Communicator& communicator, const measurement::Sampling& sampling,
                                const std::function<void()>& run);

/// Waits until all kernels are done.
void finish_kernels();

}  // namespace annulus::bench
