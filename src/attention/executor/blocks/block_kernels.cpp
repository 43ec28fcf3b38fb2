#include "attention/executor/blocks/block_kernels.hpp"

#include <Kokkos_Core.hpp>

#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>

#include "base/kokkos/instantiate.hpp"
#include "base/with_dtype.hpp"

namespace annulus::executor {

namespace blocks_detail {  // named: device compilers want lambdas and their captures to have linkage

/// A block as runs of contiguous elements, cut into slices of a size that keeps all threads busy.
struct Runs {
  std::int64_t batch_stride, head_stride, offset;

  explicit Runs(const StridedBlock& b)
      : batch_stride(b.batch_stride), head_stride(b.head_stride), offset(b.offset) {}
  /// A contiguous array of the block's shape.
  static Runs compact(const StridedBlock& b) {
    StridedBlock packed = b;
    packed.offset = 0;
    packed.head_stride = b.run();
    packed.batch_stride = b.heads * b.run();
    return Runs(packed);
  }
  KOKKOS_FUNCTION std::int64_t start(std::int64_t batch, std::int64_t head) const {
    return offset + batch * batch_stride + head * head_stride;
  }
};

/// Calls f(element of a, element of b) for every element of two places of the shape of `block`.
template <class Exec, class F>
void for_each(const Exec& exec, const char* label, const StridedBlock& block, const Runs& a, const Runs& b,
              const F& f) {
  if (block.elements() == 0) return;
  constexpr std::int64_t slice = 4096;  // elements of a team: long against its start, short against a shard
  const std::int64_t run = block.run(), heads = block.heads;
  const std::int64_t slices = ceil_divide(run, slice);
  const Kokkos::TeamPolicy<Exec> policy(exec, static_cast<int>(block.batch * heads * slices), Kokkos::AUTO);
  Kokkos::parallel_for(
      label, policy, KOKKOS_LAMBDA(const typename Kokkos::TeamPolicy<Exec>::member_type& team) {
        const std::int64_t index = team.league_rank();
        const std::int64_t batch = index / (heads * slices), head = index / slices % heads;
        const std::int64_t begin = index % slices * slice;
        const std::int64_t end = begin + slice < run ? begin + slice : run;
        const std::int64_t at_a = a.start(batch, head), at_b = b.start(batch, head);
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, begin, end),
                             [&](const std::int64_t i) { f(at_a + i, at_b + i); });
      });
}

template <class To, class From>
KOKKOS_FUNCTION To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else {
    return To(static_cast<float>(value));
  }
}

/// Elements of a block in memory. Void is const void where they are read.
template <class Void>
struct Elements {
  Runs runs;
  Void* data;
};

template <class Exec, class To, class From>
void copy(const Exec& exec, const char* label, const StridedBlock& block, const Elements<const void>& from,
          const Elements<void>& to) {
  const auto* in = static_cast<const From*>(from.data);
  auto* out = static_cast<To*>(to.data);
  for_each(
      exec, label, block, from.runs, to.runs,
      KOKKOS_LAMBDA(const std::int64_t i, const std::int64_t j) { out[j] = convert<To>(in[i]); });
}

/// Calls f with a value of the C++ type of a DType that tensors travel in.
template <class F>
void with_type(DType type, const F& f) {
  require(with_dtype<float, bfloat16, float16>(type, f),
          "tensors of attention travel as f32, bf16 or f16, not as {}", name_of(type));
}

}  // namespace blocks_detail

using namespace blocks_detail;  // NOLINT(google-build-using-namespace): this file's own helpers

template <class Exec>
void pack(const Exec& exec, const StridedBlock& block, const void* base, DType stored, void* out,
          DType wire) {
  with_type(stored, [&](auto from) {
    with_type(wire, [&](auto to) {
      copy<Exec, decltype(to), decltype(from)>(exec, "annulus::executor::pack", block, {Runs(block), base},
                                               {Runs::compact(block), out});
    });
  });
}

template <class Exec>
void unpack(const Exec& exec, const void* in, DType wire, const StridedBlock& block, void* base,
            DType stored) {
  with_type(wire, [&](auto from) {
    with_type(stored, [&](auto to) {
      copy<Exec, decltype(to), decltype(from)>(exec, "annulus::executor::unpack", block,
                                               {Runs::compact(block), in}, {Runs(block), base});
    });
  });
}

template <class Exec>
void add(const Exec& exec, const StridedBlock& from, const float* from_base, const StridedBlock& to,
         float* to_base) {
  for_each(
      exec, "annulus::executor::add", from, Runs(from), Runs(to),
      KOKKOS_LAMBDA(const std::int64_t i, const std::int64_t j) { to_base[j] += from_base[i]; });
}

template <class Exec>
void fill(const Exec& exec, const StridedBlock& block, float* base, float value) {
  for_each(
      exec, "annulus::executor::fill", block, Runs(block), Runs(block),
      KOKKOS_LAMBDA(const std::int64_t i, std::int64_t) { base[i] = value; });
}

ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_COMPILE_FUNCTION, pack)
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_COMPILE_FUNCTION, unpack)
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_COMPILE_FUNCTION, add)
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_COMPILE_FUNCTION, fill)

}  // namespace annulus::executor
