#pragma once

#include <string>
#include <string_view>
#include <type_traits>

#include <annulus/attention/sequence/mask.hpp>
#include <annulus/attention/sequence/position_map.hpp>
#include <annulus/base/dtype.hpp>
#include <annulus/base/kokkos/tensor.hpp>

/// Attention of one block of query rows against one block of key rows: the local piece of every schedule.
///
/// S = scale · Q·Kᵀ, capped where a call says so and masked by global positions, P = softmax(S), O = P·V, LSE
/// = log Σ exp(S) (natural logarithm). Query head h reads kv head h / (heads / kv_heads): K and V are never
/// expanded. Rows of V, O and their gradients have v_head_dim columns, all others head_dim; on tensor cores
/// both are equal. Sums are kept in fp32; results are deterministic: the same bits for the same input,
/// whatever the number of threads.
namespace annulus::attention {

/// Which code runs.
enum class Kernel : std::uint8_t {
  automatic,  ///< the fastest that the execution space and the shape allow
  portable,   ///< the Kokkos kernel that runs on every execution space and shape
  host_simd,  ///< the host's SIMD micro-kernel; an Error where it does not apply
  mma,        ///< NVIDIA's tensor cores, 16-bit types, head_dim 64 to 128; an Error where it does not apply
  hopper,     ///< the tensor cores of an H100 or H200, 16-bit types, head_dim 64 to 128 or 256; as mma
  tensor_cores,  ///< the fastest on tensor cores; an Error where automatic would take another
};
std::string_view name_of(Kernel kernel);

/// Whether the kernel is for tensor cores alone.
bool on_tensor_cores(Kernel kernel);

/// The inverse of name_of. Throws Error naming `field` when `name` is none of them.
Kernel parse_kernel(std::string_view name, std::string_view field = "kernel");

/// How a call runs. A Kernel alone stands for these options with that kernel.
struct KernelOptions {
  KernelOptions(Kernel kernel = Kernel::automatic) : kernel(kernel) {}  // NOLINT(google-explicit-constructor)

  Kernel kernel;
  /// false: the kernel hopper may add to dQ in any order, which saves a few per cent; results then differ in
  /// their last bits from run to run. All other kernels keep their order.
  bool deterministic = true;
  /// Multiprocessors (SMs) that the kernel hopper leaves to others. Does not change results.
  int free_sms = 0;
  /// Results that hold nothing yet: they are written, and what stood there is not read. Saves clearing them.
  bool fresh_out = false;  ///< forward: out and lse
  bool fresh_dq = false;   ///< backward: dq
  bool fresh_dkv = false;  ///< backward: dk and dv
};

/// Inputs of a local attention. T is float, bfloat16 or float16. The arrays that `mask` points to must be
/// readable from the execution space (see MaskOn in mask_on.hpp).
template <class T, class Space>
struct Operands {
  Strided4<const T, Space> q;  ///< (batch, heads, q_rows, head_dim)
  Strided4<const T, Space> k;  ///< (batch, kv_heads, kv_rows, head_dim)
  Strided4<const T, Space> v;  ///< (batch, kv_heads, kv_rows, v_head_dim)
  PositionMap q_positions;     ///< of the q_rows
  PositionMap kv_positions;    ///< of the kv_rows
  MaskRule mask;
  float scale = 1.0f;  ///< of the scores, usually 1 / sqrt(head_dim)
  /// Scores become soft_cap · tanh(score / soft_cap) before they are masked (Gemma 2); 0: they stay. Kernels
  /// on tensor cores take the hyperbolic tangent to a relative error of 2⁻¹¹, all others in fp32.
  float soft_cap = 0.0f;
  /// Keys one by one, in the place of kv_positions: (batch, kv_heads, kv_rows) positions, those of a head
  /// increasing, readable from the execution space; from mask.tokens on they are no keys. The mask has no
  /// dilation then. What mask.blocks_excluded is for.
  const std::int64_t* kv_listed = nullptr;

  /// Where the keys stand; with kv_listed those of the first kv head of the first sequence.
  KOKKOS_FUNCTION KeyPositions keys() const { return {kv_positions, kv_listed}; }
};

/// Head dimensions that the kernels take: 16 to 256 in multiples of 8. Throws Error naming `field` otherwise.
void check_head_dim(int head_dim, std::string_view field = "head_dim");

/// The kernel that forward and backward run where `kernel` is asked for, on contiguous arrays and with a
/// positive scale; v_head_dim 0 stands for head_dim. What `automatic` or `tensor_cores` stands for, else
/// `kernel`. Throws Error as they do.
template <class Exec, class T>
Kernel kernel_for(int head_dim, Kernel kernel = Kernel::automatic, const MaskRule& mask = {},
                  float soft_cap = 0.0f, int v_head_dim = 0);

/// Warns, for the log, where `automatic` stands for the portable kernel on a GPU: that this is far slower
/// than tensor cores, why, and what to do. Empty elsewhere.
template <class Exec, class T>
std::string slow_kernel_warning(int head_dim, Kernel kernel, float soft_cap = 0.0f, int v_head_dim = 0);

/// Results of forward.
template <class T, class Space>
struct ForwardArrays {
  Strided4<float, Space> out;  ///< (batch, heads, q_rows, v_head_dim): the running result
  Strided3<float, Space> lse;  ///< (batch, heads, q_rows)
  /// Output in T, with the extents of `out`, or none (no data): this call is the last one of its rows, and
  /// the merged result goes here, rounded to T. `out` is read as ever, and on return holds nothing of worth.
  Strided4<T, Space> finished = {};
  /// (heads), or none (no data): this call is the last one of its rows, and sinks join them (join_sinks).
  Array1<const T, Space> sinks = {};
};

/// Computes the block and merges it into the running result (BurstEngine eq. 5 and the online softmax of
/// §3.1):
///   lse' = log(exp(lse) + exp(block lse)),  out' = exp(lse − lse')·out + exp(block lse − lse')·block out.
/// Start from out = 0, lse = −inf (start_forward), or with KernelOptions::fresh_out. A row without any key
/// keeps 0 and −inf, never NaN. Throws Error where shapes differ, or rows are not contiguous.
template <class Exec, class T>
void forward(const Exec& exec, const Operands<T, Exec>& in, const ForwardArrays<T, Exec>& arrays,
             const KernelOptions& options = {});

/// Forward that writes `out` alone.
template <class Exec, class T>
void forward(const Exec& exec, const Operands<T, Exec>& in, const Strided4<float, Exec>& out,
             const Strided3<float, Exec>& lse, const KernelOptions& options = {}) {
  forward<Exec, T>(exec, in, ForwardArrays<T, Exec>{.out = out, .lse = lse}, options);
}

/// Arrays of backward besides its Operands.
template <class T, class Space>
struct BackwardArrays {
  Strided4<const T, Space> d_out;  ///< (batch, heads, q_rows, v_head_dim)
  Strided3<const float, Space>
      lse;                         ///< (batch, heads, q_rows): of all keys and sinks, not of this block alone
  Strided3<const float, Space> d;  ///< (batch, heads, q_rows): rowsum(dO∘O), see row_dot
  Strided4<float, Space> dq;       ///< like q; added to, as dk and dv are
  Strided4<float, Space> dk;       ///< like k
  Strided4<float, Space> dv;       ///< like v
};

/// Adds this block's share of the gradients:
///   P = exp(S − lse), dV += Pᵀ·dO, dS = P∘(dO·Vᵀ − d), dQ += scale·dS·K, dK += scale·dSᵀ·Q (BurstEngine
///   Algorithm 2). Where scores are capped, dS is multiplied by 1 − tanh²(score / soft_cap).
template <class Exec, class T>
void backward(const Exec& exec, const Operands<T, Exec>& in, const BackwardArrays<T, Exec>& arrays,
              const KernelOptions& options = {});

/// out = 0, lse = −inf: the neutral element of merging.
template <class Exec>
void start_forward(const Exec& exec, const Strided4<float, Exec>& out, const Strided3<float, Exec>& lse);

/// Merges another partial result into (out, lse), row by row, in fp32 (BurstEngine §3.1). Shapes as in
/// forward.
template <class Exec>
void merge(const Exec& exec, const Strided4<const float, Exec>& other_out,
           const Strided3<const float, Exec>& other_lse, const Strided4<float, Exec>& out,
           const Strided3<float, Exec>& lse);

/// Joins `arrays.sinks`, a learned logit of each query head, to the softmax of rows that all their keys have
/// been merged into: lse' = log(exp(lse) + exp(sink)), out' = exp(lse − lse')·out, the latter into
/// `arrays.finished` where there is one. A row without any key gets 0 and the sink. The backward pass of the
/// rows needs nothing but lse' and D of out'.
/// Throws Error where shapes differ, or rows are not contiguous.
template <class Exec, class T>
void join_sinks(const Exec& exec, const ForwardArrays<T, Exec>& arrays);

/// Arrays of sink_gradients. lse and d as in BackwardArrays.
template <class T, class Space>
struct SinkGradientArrays {
  Array1<const T, Space> sinks;      ///< (heads)
  Strided3<const float, Space> lse;  ///< (batch, heads, q_rows): with the sinks
  Strided3<const float, Space> d;    ///< (batch, heads, q_rows)
  Array1<float, Space> d_sinks;      ///< (heads); added to
};

/// d_sinks −= Σ exp(sink − lse)·d over the rows of a head in all sequences, which are summed in a fixed
/// order. Throws Error where shapes differ.
template <class Exec, class T>
void sink_gradients(const Exec& exec, const SinkGradientArrays<T, Exec>& arrays);

/// to = from, rounded to T (to nearest, ties to even).
///   from, to (batch, heads, q_rows, v_head_dim).
/// Throws Error where shapes differ, or rows are not contiguous.
template <class Exec, class T>
void convert(const Exec& exec, const Strided4<const float, Exec>& from, const Strided4<T, Exec>& to);

/// d = rowsum(dO∘O) in fp32 (BurstEngine Algorithm 2, line 2), of `out` in fp32 or as it was stored.
///   out, d_out (batch, heads, q_rows, v_head_dim), d (batch, heads, q_rows).
/// Out is float or T. Throws Error where shapes differ, or rows are not contiguous.
template <class Exec, class T, class Out = float>
void row_dot(const Exec& exec, const Strided4<const std::type_identity_t<Out>, Exec>& out,
             const Strided4<const T, Exec>& d_out, const Strided3<float, Exec>& d);

}  // namespace annulus::attention
