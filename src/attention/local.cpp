#include <annulus/attention/local.hpp>
#include <type_traits>

#include "attention/check.hpp"
#include "attention/host_simd/host_simd.hpp"
#include "attention/instantiate.hpp"
#include "attention/portable/portable.hpp"

namespace annulus::attention {
namespace {

/// Decides between the SIMD kernel (true) and the portable one.
template <class Exec, class T>
bool use_host_simd(const Operands<T, Exec>& in, Kernel kernel) {
  if (kernel == Kernel::portable) return false;
  bool applies = false;
  if constexpr (std::is_same_v<Exec, HostExec>) applies = host_simd::applies(in);
  if (applies || kernel == Kernel::automatic) return applies;
  fail(
      "Attention: the kernel host_simd does not take q {} on the execution space {}: use the kernel "
      "automatic or portable",
      shape_of(in.q), Exec::name());
}

}  // namespace

std::string_view name_of(Kernel kernel) {
  switch (kernel) {
    case Kernel::automatic:
      return "automatic";
    case Kernel::portable:
      return "portable";
    case Kernel::host_simd:
      return "host_simd";
  }
  return "unknown";
}

Kernel parse_kernel(std::string_view name, std::string_view field) {
  for (const Kernel kernel : {Kernel::automatic, Kernel::portable, Kernel::host_simd}) {
    if (name_of(kernel) == name) return kernel;
  }
  fail("{} '{}' is unknown; known are automatic, portable and host_simd", field, name);
}

void check_head_dim(int head_dim, std::string_view field) {
  require(head_dim >= 16 && head_dim <= 256 && head_dim % 8 == 0,
          "{} is {}: attention takes head dimensions from 16 to 256 in multiples of 8", field, head_dim);
}

template <class Exec, class T>
void forward(const Exec& exec, const Operands<T, Exec>& in, const Strided4<float, Exec>& out,
             const Strided3<float, Exec>& lse, Kernel kernel) {
  check_operands(in);
  check_array("out", out, "q", in.q);
  check_array("lse", lse, "q", in.q);
  const bool simd = use_host_simd(in, kernel);
  if (in.q.size() == 0 || in.k.size() == 0) return;
  if constexpr (std::is_same_v<Exec, HostExec>) {
    if (simd) return host_simd::forward(exec, in, out, lse);
  }
  portable::forward(exec, in, out, lse);
}

template <class Exec, class T>
void backward(const Exec& exec, const Operands<T, Exec>& in, const Strided4<const T, Exec>& d_out,
              const Strided3<const float, Exec>& lse, const Strided3<const float, Exec>& d,
              const Strided4<float, Exec>& dq, const Strided4<float, Exec>& dk,
              const Strided4<float, Exec>& dv, Kernel kernel) {
  check_operands(in);
  check_array("d_out", d_out, "q", in.q);
  check_array("lse", lse, "q", in.q);
  check_array("d", d, "q", in.q);
  check_array("dq", dq, "q", in.q);
  check_array("dk", dk, "k", in.k);
  check_array("dv", dv, "v", in.v);
  const bool simd = use_host_simd(in, kernel);
  if (in.q.size() == 0 || in.k.size() == 0) return;
  if constexpr (std::is_same_v<Exec, HostExec>) {
    if (simd) return host_simd::backward(exec, in, d_out, lse, d, dq, dk, dv);
  }
  portable::backward(exec, in, d_out, lse, d, dq, dk, dv);
}

#define ANNULUS_ATTENTION_LOCAL(Exec, T)                                                                  \
  template void forward<Exec, T>(const Exec&, const Operands<T, Exec>&, const Strided4<float, Exec>&,     \
                                 const Strided3<float, Exec>&, Kernel);                                   \
  template void backward<Exec, T>(const Exec&, const Operands<T, Exec>&, const Strided4<const T, Exec>&,  \
                                  const Strided3<const float, Exec>&, const Strided3<const float, Exec>&, \
                                  const Strided4<float, Exec>&, const Strided4<float, Exec>&,             \
                                  const Strided4<float, Exec>&, Kernel);

ANNULUS_ATTENTION_SPACES_AND_TYPES(ANNULUS_ATTENTION_LOCAL)

}  // namespace annulus::attention
