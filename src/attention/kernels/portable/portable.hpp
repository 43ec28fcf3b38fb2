#pragma once

#include <annulus/attention/kernels/local.hpp>

/// The Kokkos kernels that run on every execution space and shape (Kernel::portable): register-blocked
/// products of tiles in team scratch, an online softmax, nothing of size q_rows × kv_rows ever stored.
/// Arguments as in local.hpp, checked by the caller; no extent is 0.
namespace annulus::attention::portable {

template <class Exec, class T>
void forward(const Exec& exec, const Operands<T, Exec>& in, const Strided4<float, Exec>& out,
             const Strided3<float, Exec>& lse);

template <class Exec, class T>
void backward(const Exec& exec, const Operands<T, Exec>& in, const BackwardArrays<T, Exec>& arrays);

}  // namespace annulus::attention::portable
