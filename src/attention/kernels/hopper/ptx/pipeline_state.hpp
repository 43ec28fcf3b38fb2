#pragma once

namespace annulus::attention::hopper {

/// Which of `stages` buffers is next, and the parity of its barriers' phase.
template <int stages>
struct PipelineState {
  int stage = 0, parity = 0;

  /// The buffer before this one.
  __device__ __forceinline__ int before() const { return stage == 0 ? stages - 1 : stage - 1; }
  __device__ __forceinline__ void advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace annulus::attention::hopper
