// From Views to the launches, and the memory that they work in.

#include "attention/kernels/hopper/hopper.hpp"

#include <annulus/base/error.hpp>
#include <map>
#include <mutex>

#include "attention/kernels/hopper/launch/key_sections.hpp"
#include "attention/kernels/hopper/launch/launch.hpp"
#include "attention/kernels/hopper/launch/workspace.hpp"
#include "base/kokkos/execution/own_instance.hpp"
#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/memory/memory.hpp"

namespace annulus::attention::hopper {
namespace {

void check(cudaError_t error, const char* what) {
  require(error == cudaSuccess, "Attention: CUDA does not {} of the kernel hopper: {}", what,
          cudaGetErrorString(error));
}

/// Device memory for tables and counters, at least `bytes` long: kept for each stream from one call to the
/// next, so that a step allocates nothing. Work of a stream is done in order, so calls may share it.
void* workspace(const Kokkos::Cuda& exec, std::size_t bytes) {
  using Memory = Owned<Array1<unsigned char, Kokkos::Cuda>>;
  static std::mutex mutex;  // ranks of a test are threads
  static std::map<cudaStream_t, Memory> of_streams;
  static const bool cleared_in_time = [] {
    at_stream_end([](void* stream) {
      const std::lock_guard lock(mutex);
      of_streams.erase(static_cast<cudaStream_t>(stream));
    });
    Kokkos::push_finalize_hook([] {
      Kokkos::fence("annulus::attention::hopper: kernels are done with their tables");
      of_streams.clear();
    });
    return true;
  }();
  static_cast<void>(cleared_in_time);
  const std::lock_guard lock(mutex);
  Memory& memory = of_streams[exec.cuda_stream()];
  if (memory.view().size() < bytes) {
    memory = {};  // goes back behind what the stream has been given
    memory =
        Memory::uninitialized(exec, MemoryCategory::workspace, "annulus::attention::hopper::tables", bytes);
  }
  return memory.view().data();
}

LaunchOptions launch_options(const KernelOptions& options) {
  return {options.free_sms, options.deterministic, options.fresh_out, options.fresh_dq, options.fresh_dkv};
}

template <class T>
DilationClasses classes_of(const gpu::Input<T>& in) {
  return dilation_classes(in.mask, in.q_positions, in.kv_positions).value();  // applies() has looked
}

}  // namespace

bool runs_here() {
  static const bool result = [] {  // a process has one device: Kokkos chose it
    const int device = Kokkos::Cuda().cuda_device();
    int major = 0, minor = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "name the GPU");
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "name the GPU");
    return major == 9 && minor == 0;
  }();
  return result;
}

template <class Exec, class T>
void forward(const Exec& exec, const Operands<T, Exec>& in, const ForwardArrays<T, Exec>& arrays,
             const KernelOptions& options) {
  const Region region("annulus::attention::hopper::forward");
  const gpu::ForwardProblem<T> problem{gpu::input_of(in), gpu::rows_of(arrays.out), gpu::rows_of(arrays.lse),
                                       gpu::rows_of(arrays.finished), arrays.sinks.data()};
  const DilationClasses classes = classes_of(problem.in);
  LaunchOptions launch = launch_options(options);
  void* const memory = workspace(exec, forward_workspace(problem.in, classes));
  const int group = problem.in.heads / problem.in.kv_heads;
  for_each_section(problem.in, [&](const HeadSection& section) {
    const gpu::ForwardProblem<T> of_heads{section.of(problem.in), section.of_heads(problem.out, group),
                                          section.of_heads(problem.lse, group),
                                          section.of_heads(problem.finished, group), problem.sinks};
    const auto start = [&](const gpu::ForwardProblem<T>& part, bool fresh) {
      launch.fresh_out = fresh;
      with_tiles(part, [&](auto columns, auto form) {
        check(launch_forward<columns, form, T>(part, classes, launch, memory, exec.cuda_stream()),
              "start the forward pass");
      });
    };
    for_each_key_section(of_heads, options.fresh_out, keys_at_once(of_heads.in), start);
  });
}

template <class Exec, class T>
void backward(const Exec& exec, const Operands<T, Exec>& in, const BackwardArrays<T, Exec>& arrays,
              const KernelOptions& options) {
  const Region region("annulus::attention::hopper::backward");
  const gpu::BackwardProblem<T> problem{
      gpu::input_of(in),       gpu::rows_of(arrays.d_out), gpu::rows_of(arrays.lse), gpu::rows_of(arrays.d),
      gpu::rows_of(arrays.dq), gpu::rows_of(arrays.dk),    gpu::rows_of(arrays.dv)};
  const DilationClasses classes = classes_of(problem.in);
  LaunchOptions launch = launch_options(options);
  void* const memory = workspace(exec, backward_workspace(problem.in, classes, launch));
  const int group = problem.in.heads / problem.in.kv_heads;
  for_each_section(problem.in, [&](const HeadSection& section) {
    const gpu::BackwardProblem<T> part{section.of(problem.in),
                                       section.of_heads(problem.d_out, group),
                                       section.of_heads(problem.lse, group),
                                       section.of_heads(problem.d, group),
                                       section.of_heads(problem.dq, group),
                                       section.of_kv_heads(problem.dk),
                                       section.of_kv_heads(problem.dv)};
    // Further heads of a kv head add to what the first ones have written.
    launch.fresh_dkv = options.fresh_dkv && section.first_head == 0;
    with_tiles(part.in, [&](auto columns, auto form) {
      check(launch_backward<columns, form, T>(part, classes, launch, memory, exec.cuda_stream()),
            "start the backward pass");
    });
  });
}

#define ANNULUS_INSTANTIATE(T)                                                                         \
  template void forward<Kokkos::Cuda, T>(const Kokkos::Cuda&, const Operands<T, Kokkos::Cuda>&,        \
                                         const ForwardArrays<T, Kokkos::Cuda>&, const KernelOptions&); \
  template void backward<Kokkos::Cuda, T>(const Kokkos::Cuda&, const Operands<T, Kokkos::Cuda>&,       \
                                          const BackwardArrays<T, Kokkos::Cuda>&, const KernelOptions&);

ANNULUS_INSTANTIATE(bfloat16)
ANNULUS_INSTANTIATE(float16)

}  // namespace annulus::attention::hopper
