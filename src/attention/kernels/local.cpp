#include <annulus/attention/kernels/local.hpp>
#include <array>
#include <utility>

#include "attention/kernels/check.hpp"
#include "attention/kernels/fastest.hpp"
#include "attention/kernels/gpu/views.hpp"
#include "attention/kernels/hopper/hopper.hpp"
#include "attention/kernels/host_simd/host_simd.hpp"
#include "attention/kernels/mma/mma.hpp"
#include "attention/kernels/portable/portable.hpp"
#include "attention/kernels/tensor_cores.hpp"
#include "base/kokkos/instantiate.hpp"
#include "base/nearest.hpp"

namespace annulus::attention {
namespace {

/// Names of the kernels, in the order of Kernel.
constexpr std::array<std::string_view, 6> kernel_names{"automatic", "portable", "host_simd",
                                                       "mma",       "hopper",   "tensor_cores"};

#ifdef ANNULUS_ATTENTION_MMA
constexpr bool has_tensor_core_kernels = true;
template <class Exec, class T>
inline constexpr bool may_use_tensor_cores = std::is_same_v<Exec, Kokkos::Cuda> && !std::is_same_v<T, float>;
#else
constexpr bool has_tensor_core_kernels = false;
#endif

/// Keys at listed positions: the position map says how many.
template <class Exec, class T>
Operands<T, Exec> with_listed_count(Operands<T, Exec> in) {
  if (in.kv_listed != nullptr) {
    in.kv_positions = PositionMap{.count = static_cast<std::int64_t>(in.k.extent(2))};
  }
  return in;
}

/// The fastest kernel on tensor cores that takes the operands; portable where none does.
template <class Exec, class T, class... Views>
Kernel tensor_core_kernel([[maybe_unused]] const Operands<T, Exec>& in,
                          [[maybe_unused]] const Views&... others) {
#ifdef ANNULUS_ATTENTION_MMA
  if constexpr (std::is_same_v<Exec, Kokkos::Cuda>) {
#ifdef ANNULUS_ATTENTION_HOPPER
    if (hopper_is_fastest(in, others...) && hopper::runs_here()) return Kernel::hopper;
#endif
    if (mma::applies(in, others...)) return Kernel::mma;
  }
#endif
  return Kernel::portable;
}

/// The kernel that runs, `kernel` or what it stands for. `others` are the further arrays of rows.
template <class Exec, class T, class... Views>
Kernel choose(const Operands<T, Exec>& in, Kernel kernel, const Views&... others) {
  if (kernel == Kernel::portable) return kernel;
  if constexpr (std::is_same_v<Exec, HostExec>) {
    if ((kernel == Kernel::automatic || kernel == Kernel::host_simd) && host_simd::applies(in))
      return Kernel::host_simd;
  }
  require(kernel != Kernel::host_simd,
          "Attention: the kernel host_simd does not take q {} on the execution space {}: use the kernel "
          "automatic or portable",
          shape_of(in.q), Exec::name());
  const Kernel fastest = tensor_core_kernel<Exec, T>(in, others...);
  if (kernel == Kernel::automatic) return fastest;
  if (fastest == kernel) return kernel;
#ifdef ANNULUS_ATTENTION_MMA
  if constexpr (std::is_same_v<Exec, Kokkos::Cuda>) {
    if (kernel == Kernel::mma && mma::applies(in, others...)) return kernel;
#ifdef ANNULUS_ATTENTION_HOPPER
    if (kernel == Kernel::hopper && hopper::applies(in, others...) && hopper::runs_here()) return kernel;
#endif
  }
#endif
  if (kernel == Kernel::tensor_cores && fastest != Kernel::portable) return fastest;
  fail(
      "Attention: the kernel {} takes {}, not q {} and v {} of {} bytes an element{} on the execution space "
      "{}: use the kernel automatic or portable",
      name_of(kernel), kernel == Kernel::hopper ? hopper::limits : mma::limits, shape_of(in.q),
      shape_of(in.v), sizeof(T), in.soft_cap > 0.0f ? fmt::format(" with the soft cap {}", in.soft_cap) : "",
      Exec::name());
}

/// One head of (batch, heads, …), as an array of one sequence with one head.
template <class View>
View head_of(const View& view, int batch, int head) {
  const std::pair one_batch(batch, batch + 1), one_head(head, head + 1);
  if constexpr (View::rank() == 4) {
    return Kokkos::subview(view, one_batch, one_head, Kokkos::ALL, Kokkos::ALL);
  } else {
    return Kokkos::subview(view, one_batch, one_head, Kokkos::ALL);
  }
}

/// Heads have block lists or listed keys of their own, and the kernel takes one list in a call.
template <class T, class Exec>
bool list_by_list(const Operands<T, Exec>& in, Kernel kernel) {
  if (kernel == Kernel::hopper || (kernel == Kernel::mma && mma::takes_lists(in))) return false;
  return in.mask.lists_of_heads() || (in.kv_listed != nullptr && in.k.extent(0) * in.k.extent(1) > 1);
}

/// Calls run(operands of one head with its list, sequence, head, kv head) for each head.
template <class T, class Exec, class Run>
void for_each_head(const Operands<T, Exec>& in, const Run& run) {
  const int heads = in.q.extent_int(1), kv_heads = in.k.extent_int(1), group = heads / kv_heads;
  const auto kv_rows = static_cast<std::int64_t>(in.k.extent(2));
  for (int batch = 0; batch < in.q.extent_int(0); ++batch) {
    for (int head = 0; head < heads; ++head) {
      const int kv_head = head / group;
      const std::int64_t* const listed =
          in.kv_listed == nullptr ? nullptr
                                  : in.kv_listed + (std::int64_t{batch} * kv_heads + kv_head) * kv_rows;
      run({head_of(in.q, batch, head), head_of(in.k, batch, kv_head), head_of(in.v, batch, kv_head),
           in.q_positions, in.kv_positions, in.mask.of_head(std::int64_t{batch} * heads + head), in.scale,
           in.soft_cap, listed},
          batch, head, kv_head);
    }
  }
}

/// Whether the kernel itself writes ForwardArrays::finished, in pairs of elements, and joins its sinks.
template <class T, class Exec>
bool finishes_itself(Kernel kernel, const Operands<T, Exec>& in, const ForwardArrays<T, Exec>& arrays) {
  return kernel == Kernel::hopper && gpu::aligned(arrays.finished, 2 * sizeof(T)) &&
         (arrays.sinks.data() == nullptr || hopper::joins_sinks(in));
}

template <class Exec, class T>
void run_forward(Kernel kernel, const Exec& exec, const Operands<T, Exec>& in,
                 const ForwardArrays<T, Exec>& arrays, [[maybe_unused]] const KernelOptions& options) {
  const auto& [out, lse, finished, sinks] = arrays;
  if constexpr (std::is_same_v<Exec, HostExec>) {
    if (kernel == Kernel::host_simd) return host_simd::forward(exec, in, out, lse);
  }
#ifdef ANNULUS_ATTENTION_MMA
  if constexpr (may_use_tensor_cores<Exec, T>) {
#ifdef ANNULUS_ATTENTION_HOPPER
    if (kernel == Kernel::hopper) return hopper::forward(exec, in, arrays, options);
#endif
    if (kernel == Kernel::mma) return mma::forward(exec, in, out, lse);
  }
#endif
  portable::forward(exec, in, out, lse);
}

template <class Exec, class T>
void run_backward(Kernel kernel, const Exec& exec, const Operands<T, Exec>& in,
                  const BackwardArrays<T, Exec>& arrays, [[maybe_unused]] const KernelOptions& options) {
  if constexpr (std::is_same_v<Exec, HostExec>) {
    if (kernel == Kernel::host_simd) return host_simd::backward(exec, in, arrays);
  }
#ifdef ANNULUS_ATTENTION_MMA
  if constexpr (may_use_tensor_cores<Exec, T>) {
#ifdef ANNULUS_ATTENTION_HOPPER
    if (kernel == Kernel::hopper) return hopper::backward(exec, in, arrays, options);
#endif
    if (kernel == Kernel::mma) return mma::backward(exec, in, arrays);
  }
#endif
  portable::backward(exec, in, arrays);
}

}  // namespace

std::string_view name_of(Kernel kernel) {
  return kernel_names.at(static_cast<std::size_t>(kernel));
}

bool on_tensor_cores(Kernel kernel) {
  return kernel == Kernel::mma || kernel == Kernel::hopper || kernel == Kernel::tensor_cores;
}

Kernel parse_kernel(std::string_view name, std::string_view field) {
  return static_cast<Kernel>(place_of_name(name, kernel_names, field));
}

void check_head_dim(int head_dim, std::string_view field) {
  require(head_dim >= 16 && head_dim <= 256 && head_dim % 8 == 0,
          "{} is {}: attention takes head dimensions from 16 to 256 in multiples of 8", field, head_dim);
}

template <class Exec, class T>
Kernel kernel_for(int head_dim, Kernel kernel, const MaskRule& mask, float soft_cap, int v_head_dim) {
  const auto row = [](int columns) {  // read by nobody
    return Array4<const T, Exec>(static_cast<const T*>(nullptr), 1, 1, 1, columns);
  };
  return choose(Operands<T, Exec>{row(head_dim),
                                  row(head_dim),
                                  row(v_head_dim == 0 ? head_dim : v_head_dim),
                                  {},
                                  {},
                                  mask,
                                  1.0f,
                                  soft_cap},
                kernel);
}

template <class Exec, class T>
std::string slow_kernel_warning(int head_dim, Kernel kernel, float soft_cap, int v_head_dim) {
  constexpr bool host =
      Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename Exec::memory_space>::accessible;
  if (host || kernel != Kernel::automatic ||
      kernel_for<Exec, T>(head_dim, kernel, {}, soft_cap, v_head_dim) != Kernel::portable)
    return {};
  const bool takes_plain = soft_cap > 0.0f && kernel_for<Exec, T>(head_dim, Kernel::automatic, {}, 0.0f,
                                                                  v_head_dim) != Kernel::portable;
  return "attention runs on the portable kernel, some 30 to 40 times "
         "slower than the tensor cores of this GPU: " +
         (takes_plain
              ? fmt::format("with a soft cap the kernel hopper takes {}", hopper::limits)
              : why_not_on_tensor_cores(dtype_of<T>, head_dim, v_head_dim == 0 ? head_dim : v_head_dim,
                                        has_tensor_core_kernels));
}

template <class Exec, class T>
void forward(const Exec& exec, const Operands<T, Exec>& operands, const ForwardArrays<T, Exec>& arrays,
             const KernelOptions& options) {
  const Operands<T, Exec> in = with_listed_count(operands);
  const auto& [out, lse, finished, sinks] = arrays;
  const bool finishes = finished.data() != nullptr, joins = sinks.data() != nullptr;
  check_operands(in);
  check_out("out", out, in);
  check_array("lse", lse, "q", in.q);
  if (finishes) check_out("finished", finished, in);
  if (joins) check_sinks("sinks", sinks, "q", in.q);
  const Kernel kernel = choose(in, options.kernel, out);
  const bool nothing = in.q.size() == 0 || in.k.size() == 0;
  if (options.fresh_out && (nothing || kernel != Kernel::hopper)) start_forward<Exec>(exec, out, lse);
  const bool rest = (finishes || joins) && (nothing || !finishes_itself(kernel, in, arrays));
  if (!nothing) {
    const ForwardArrays<T, Exec> all = rest ? ForwardArrays<T, Exec>{out, lse} : arrays;
    if (list_by_list(in, kernel)) {
      for_each_head(in, [&](const Operands<T, Exec>& one, int batch, int head, int) {
        run_forward(kernel, exec, one, {head_of(out, batch, head), head_of(lse, batch, head)}, options);
      });
    } else {
      run_forward(kernel, exec, in, all, options);
    }
  }
  if (rest && joins) return join_sinks<Exec, T>(exec, arrays);
  if (rest) convert<Exec, T>(exec, out, finished);
}

template <class Exec, class T>
void backward(const Exec& exec, const Operands<T, Exec>& operands, const BackwardArrays<T, Exec>& arrays,
              const KernelOptions& options) {
  const Operands<T, Exec> in = with_listed_count(operands);
  const auto& [d_out, lse, d, dq, dk, dv] = arrays;
  check_operands(in);
  check_out("d_out", d_out, in);
  check_array("lse", lse, "q", in.q);
  check_array("d", d, "q", in.q);
  check_array("dq", dq, "q", in.q);
  check_array("dk", dk, "k", in.k);
  check_array("dv", dv, "v", in.v);
  const Kernel kernel = choose(in, options.kernel, d_out, dq, dk, dv);
  const bool nothing = in.q.size() == 0 || in.k.size() == 0;
  if (nothing || kernel != Kernel::hopper) {
    if (options.fresh_dq) Kokkos::deep_copy(exec, dq, 0.0f);
    if (options.fresh_dkv) {
      Kokkos::deep_copy(exec, dk, 0.0f);
      Kokkos::deep_copy(exec, dv, 0.0f);
    }
  }
  if (nothing) return;
  if (!list_by_list(in, kernel)) return run_backward(kernel, exec, in, arrays, options);
  for_each_head(in, [&](const Operands<T, Exec>& one, int batch, int head, int kv_head) {
    run_backward(kernel, exec, one,
                 {.d_out = head_of(arrays.d_out, batch, head),
                  .lse = head_of(arrays.lse, batch, head),
                  .d = head_of(arrays.d, batch, head),
                  .dq = head_of(arrays.dq, batch, head),
                  .dk = head_of(arrays.dk, batch, kv_head),
                  .dv = head_of(arrays.dv, batch, kv_head)},
                 options);
  });
}

#define ANNULUS_ATTENTION_LOCAL(Exec, T)                                                                 \
  template Kernel kernel_for<Exec, T>(int, Kernel, const MaskRule&, float, int);                         \
  template std::string slow_kernel_warning<Exec, T>(int, Kernel, float, int);                            \
  template void forward<Exec, T>(const Exec&, const Operands<T, Exec>&, const ForwardArrays<T, Exec>&,   \
                                 const KernelOptions&);                                                  \
  template void backward<Exec, T>(const Exec&, const Operands<T, Exec>&, const BackwardArrays<T, Exec>&, \
                                  const KernelOptions&);

ANNULUS_FOR_ATTENTION(ANNULUS_ATTENTION_LOCAL)

}  // namespace annulus::attention
