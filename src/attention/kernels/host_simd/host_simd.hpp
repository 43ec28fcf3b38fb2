#pragma once

#include <annulus/attention/kernels/local.hpp>

/// The host's own attention kernel: register-blocked SIMD products over packed tiles, online softmax with a
/// vector exponential, nothing of size q_rows × kv_rows ever stored. Private to the module:
/// attention::forward and attention::backward choose it (Kernel::host_simd).
///
/// Any mask, position map, number of rows and grouped heads; batch, head and row strides are free. bfloat16
/// and float16 are widened to float while tiles are packed; all arithmetic is float. Results do not depend on
/// the number of threads.
namespace annulus::attention::host_simd {

/// Columns of the operands' rows.
struct HeadDims {
  int qk, v;  ///< of Q and K; of V and O
  template <class T>
  static HeadDims of(const Operands<T, HostExec>& in) {
    return {in.q.extent_int(3), in.v.extent_int(3)};
  }
  int larger() const { return qk > v ? qk : v; }
};

/// Whether the kernel takes these operands: head dimensions 16 to 256 in multiples of 8, last index
/// contiguous.
template <class T>
bool applies(const Operands<T, HostExec>& in);

/// attention::forward on the host; same arguments, shapes and results. Enqueues on `exec`.
template <class T>
void forward(const HostExec& exec, const Operands<T, HostExec>& in, const Strided4<float, HostExec>& out,
             const Strided3<float, HostExec>& lse);

/// attention::backward on the host; same arguments, shapes and results. Enqueues on `exec`.
template <class T>
void backward(const HostExec& exec, const Operands<T, HostExec>& in,
              const BackwardArrays<T, HostExec>& arrays);

}  // namespace annulus::attention::host_simd
