#pragma once

namespace annulus::attention::hopper {

/// How a launch uses the GPU.
struct LaunchOptions {
  /// Multiprocessors (SMs) that are left to others, NCCL's kernels say. Results do not depend on it.
  int free_sms = 0;
  /// Backward: dQ is summed in a fixed order, so that results are the same bits each time.
  bool deterministic = true;
  /// Results that hold nothing yet: they are written instead of added to, and need no zeros before.
  bool fresh_out = false, fresh_dq = false, fresh_dkv = false;
};

}  // namespace annulus::attention::hopper
