#pragma once

namespace annulus {

/// Whether instances of an execution space are streams of a GPU: those of Kokkos::Cuda and Kokkos::HIP.
template <class Exec>
inline constexpr bool has_stream = requires(const Exec& exec) {
  exec.cuda_stream();
}
|| requires(const Exec& exec) {
  exec.hip_stream();
};

/// The handle of an instance's stream, a cudaStream_t or hipStream_t; null where there is none.
template <class Exec>
void* stream_of(const Exec& exec) {
  if constexpr (requires { exec.cuda_stream(); }) {
    return exec.cuda_stream();
  } else if constexpr (requires { exec.hip_stream(); }) {
    return exec.hip_stream();
  } else {
    return nullptr;
  }
}

}  // namespace annulus
