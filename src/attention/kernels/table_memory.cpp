#include "attention/kernels/table_memory.hpp"

#include "attention/kernels/fastest.hpp"
#include "attention/kernels/hopper/launch/workspace.hpp"

namespace annulus::attention {

namespace {

/// Calls bytes(input, dilation classes) where the kernel hopper runs.
template <class T, class Bytes>
std::int64_t tables_of_hopper(Operands<T, HostExec> in, Kernel kernel, const Bytes& bytes) {
  if constexpr (std::is_same_v<T, float>) {
    return 0;
  } else {
    if (in.q.extent(2) == 0 || in.k.extent(2) == 0) return 0;
    const bool automatic = kernel == Kernel::automatic || kernel == Kernel::tensor_cores;
    if (!(automatic ? hopper_is_fastest(in) : kernel == Kernel::hopper && hopper::applies(in))) return 0;
    const auto classes = hopper::dilation_classes(in.mask, in.q_positions, in.kv_positions);
    return static_cast<std::int64_t>(bytes(gpu::input_of(in), classes.value()));  // applies() has looked
  }
}

}  // namespace

template <class T>
std::int64_t forward_tables(const Operands<T, HostExec>& in, const KernelOptions& options) {
  return tables_of_hopper(in, options.kernel, [](const auto& input, const hopper::DilationClasses& classes) {
    return hopper::forward_workspace(input, classes);
  });
}

template <class T>
std::int64_t backward_tables(const Operands<T, HostExec>& in, const KernelOptions& options) {
  const hopper::LaunchOptions launch{.deterministic = options.deterministic};
  return tables_of_hopper(in, options.kernel, [&](const auto& input, const hopper::DilationClasses& classes) {
    return hopper::backward_workspace(input, classes, launch);
  });
}

#define ANNULUS_TABLES(T)                                                                      \
  template std::int64_t forward_tables<T>(const Operands<T, HostExec>&, const KernelOptions&); \
  template std::int64_t backward_tables<T>(const Operands<T, HostExec>&, const KernelOptions&);
ANNULUS_TABLES(float)
ANNULUS_TABLES(bfloat16)
ANNULUS_TABLES(float16)
#undef ANNULUS_TABLES

}  // namespace annulus::attention
