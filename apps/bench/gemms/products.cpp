#include "bench/gemms/products.hpp"

#include "bench/common/noise.hpp"
#include "bench/kernels/case.hpp"
#include "training/linalg/matmul.hpp"

namespace annulus::bench {

namespace {

using Exec = Kokkos::DefaultExecutionSpace;
using linalg::matmul;
using linalg::Op;

template <class T>
LinearTimes time_of_type(comm::Communicator& communicator, const measurement::Sampling& sampling,
                         const LinearShape& s) {
  const Exec exec;
  const auto x = random_matrix<T>(exec, "x", s.tokens, s.in, 1, 1.0f),
             w = random_matrix<T>(exec, "w", s.out, s.in, 2, 0.02f),
             y = random_matrix<T>(exec, "y", s.tokens, s.out, 3, 1.0f),
             dx = random_matrix<T>(exec, "dx", s.tokens, s.in, 4, 1.0f);
  const auto dw = random_matrix<float>(exec, "dw", s.out, s.in, 5, 1.0f);
  const auto timed = [&](const auto& product) { return time_kernel(communicator, sampling, product); };
  LinearTimes times;
  times.y = timed([&] { matmul<Exec, T, T>(exec, {.op_b = Op::transpose}, *x, *w, *y); });
  times.dx = timed([&] { matmul<Exec, T, T>(exec, {}, *y, *w, *dx); });
  times.dw = timed([&] { matmul<Exec, T, float>(exec, {.op_a = Op::transpose, .beta = 1.0f}, *y, *x, *dw); });
  return times;
}

}  // namespace

LinearTimes time_linear(comm::Communicator& communicator, const measurement::Sampling& sampling, DType dtype,
                        const LinearShape& shape) {
  return dtype == DType::f32 ? time_of_type<float>(communicator, sampling, shape)
                             : time_of_type<bfloat16>(communicator, sampling, shape);
}

}  // namespace annulus::bench
