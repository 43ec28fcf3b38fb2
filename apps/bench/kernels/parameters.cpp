#include <array>
#include <memory>
#include <type_traits>

#include <annulus/base/division.hpp>

#include "base/kokkos/cast.hpp"
#include "base/kokkos/pack.hpp"
#include "base/kokkos/range.hpp"
#include "bench/kernels/case.hpp"
#include "bench/kernels/data.hpp"
#include "training/optimizer/adamw.hpp"
#include "training/optimizer/clip.hpp"
#include "training/optimizer/master_weights.hpp"

namespace annulus::bench {

namespace {

using Exec = Kokkos::DefaultExecutionSpace;
using Floats = Array1<float, Exec>;
enum : std::uint32_t { of_parameters = 41, of_gradients };

/// The parameters of one SwiGLU.
std::int64_t parameters_of(const KernelSizes& s) {
  return std::int64_t{3} * s.hidden * s.ffn;
}

/// The length of the rows that flat buffers are compared in.
std::int64_t row_of(std::int64_t size) {
  return std::min<std::int64_t>(size, 1024);
}

constexpr double rate = 1e-3;
constexpr float scale = 0.5f;

/// Element of the weights after the first step of AdamW.
template <class Weights>
std::function<double()> first_step_error(const Weights& weights, const optimizer::AdamWOptions& options) {
  const auto size = static_cast<std::int64_t>(weights.extent(0)), row = row_of(size);
  return difference(weights, size / row, row, [=](std::int64_t r, std::int64_t c) {
    // m / (1 − β1) is the gradient and v / (1 − β2) its square.
    const std::int64_t i = r * row + c;
    const double g = double(scale) * stored<float>(of_gradients, i);
    return (1 - rate * options.weight_decay) * stored<float>(of_parameters, i) -
           rate * g / (std::abs(g) + options.epsilon);
  });
}

template <class T>
ReadyKernel adamw(const KernelSizes& s) {
  const Exec exec;
  const std::int64_t size = parameters_of(s);
  const optimizer::AdamWOptions options;
  const std::vector<optimizer::ParameterRange> all{{0, size, true}};
  const auto optimizer = std::make_shared<optimizer::AdamW<Exec>>(exec, options, size, all);
  const auto parameters = operand<Floats>(exec, of_parameters, "parameters", size);
  const auto gradients = operand<Floats>(exec, of_gradients, "gradients", size);
  constexpr bool separate = !std::is_same_v<T, float>;
  auto weights = result<Array1<T, Exec>>(exec, "weights", separate ? size : 0);
  if constexpr (!separate) weights = parameters;
  // Reads four buffers and writes three, and the weights of compute where they are others.
  return {.bytes = (7.0 * sizeof(float) + (separate ? sizeof(T) : 0)) * double(size),
          .run = [=] { optimizer->template step<T>(exec, parameters, gradients, rate, scale, weights); },
          .error = first_step_error(weights, options)};
}

/// What memory.offload_optimizer does: gradients from the device to the host, AdamW there, weights back.
template <class T>
ReadyKernel offloaded_adamw(const KernelSizes& s) {
  const Exec exec;
  const std::int64_t size = parameters_of(s);
  const std::vector<optimizer::ParameterRange> all{{0, size, true}};
  const optimizer::MasterOptions options{.offload = true};
  const auto masters = std::make_shared<optimizer::MasterWeights<Exec, T>>(exec, options, size, all);
  const auto gradients = operand<Floats>(exec, of_gradients, "gradients", size);
  const auto weights = result<Array1<T, Exec>>(exec, "weights", size);
  {
    const auto parameters = operand<Floats>(exec, of_parameters, "parameters", size);
    masters->fill(exec, 0, size, [&](std::int64_t first, const Floats& values) {
      Kokkos::deep_copy(exec, values, Floats(parameters.data() + first, values.extent(0)));
    });
  }
  // What the host's memory sees: seven buffers, and the weights.
  return {
      .bytes = (7.0 * sizeof(float) + sizeof(T)) * double(size),
      .run =
          [=] {
            const std::array<typename optimizer::MasterWeights<Exec, T>::WeightPart, 1> parts{{{0, weights}}};
            masters->step(exec, gradients, rate, scale, parts);
          },
      .error = first_step_error(weights, options.adamw)};
}

ReadyKernel gradient_norm(const KernelSizes& s) {
  const Exec exec;
  const std::int64_t size = parameters_of(s);
  const auto gradients = operand<Floats>(exec, of_gradients, "gradients", size);
  using Blocks = optimizer::NormBlocks<Exec>;
  const auto clipper = std::make_shared<optimizer::GradientClipper<Exec>>(1.0);
  const auto blocks = std::make_shared<Blocks>(exec, std::array{optimizer::NormRange{0, size, 0}},
                                               ceil_divide(size, Blocks::size));
  return {.bytes = 4.0 * double(size),
          .run = [=] { clipper->measure(exec, gradients, *blocks); },
          .error =
              [=] {
                double sum = 0;
                for (std::int64_t i = 0; i < size; ++i) {
                  const double g = stored<float>(of_gradients, i);
                  sum += g * g;
                }
                RowDifference all;
                all.add(clipper->measure(exec, gradients, *blocks).norm, std::sqrt(sum));
                return all.relative();
              }};
}

template <class T>
ReadyKernel cast_from_float(const KernelSizes& s) {
  const Exec exec;
  const std::int64_t size = parameters_of(s), row = row_of(size);
  const auto from = operand<Floats>(exec, of_parameters, "parameters", size);
  const auto to = result<Array1<T, Exec>>(exec, "weights", size);
  return {.bytes = (4.0 + sizeof(T)) * double(size),
          .run = [=] { cast<Exec, T, float>(exec, from, to); },
          .error = difference(to, size / row, row, [=](std::int64_t r, std::int64_t c) {
            return stored<T>(of_parameters, r * row + c);
          })};
}

constexpr int copy_width = 4;

void copy_packs(const Exec& exec, const Floats& from, const Floats& to) {
  Kokkos::parallel_for(
      "annulus::bench::copy",
      ElementRange<Exec>(exec, 0, static_cast<std::int64_t>(from.extent(0)) / copy_width),
      KOKKOS_LAMBDA(const std::int64_t i) {
        store(&to(i * copy_width), load<copy_width>(&from(i * copy_width)));
      });
}

}  // namespace

template <class T>
std::vector<KernelCase> parameter_kernels(const KernelSizes& s) {
  std::vector<KernelCase> all = {{"adamw", [s] { return adamw<T>(s); }},
                                 {"offloaded_adamw", [s] { return offloaded_adamw<T>(s); }},
                                 {"gradient_norm", [s] { return gradient_norm(s); }}};
  if constexpr (!std::is_same_v<T, float>) all.push_back({"cast", [s] { return cast_from_float<T>(s); }});
  return all;
}
template std::vector<KernelCase> parameter_kernels<float>(const KernelSizes&);
template std::vector<KernelCase> parameter_kernels<bfloat16>(const KernelSizes&);

CopyKernels copy_kernels(double bytes) {
  const Exec exec;
  const auto size = std::max<std::int64_t>(copy_width, static_cast<std::int64_t>(bytes / 2 / sizeof(float)));
  const auto from = operand<Floats>(exec, 1, "copy_from", size),
             to = operand<Floats>(exec, 2, "copy_to", size);
  return {.kernel = [=] { copy_packs(exec, from, to); },
          .deep_copy = [=] { Kokkos::deep_copy(exec, to, from); }};
}

measurement::Sample time_kernel(comm::Communicator& communicator, const measurement::Sampling& sampling,
                                const std::function<void()>& run) {
  return measurement::sample(communicator, sampling, [&](int iterations) {
    for (int i = 0; i < iterations; ++i) run();
    finish_kernels();
  });
}

void finish_kernels() {
  Kokkos::fence("annulus::bench: kernels are done");
}

}  // namespace annulus::bench
