#include "prediction/measurement/kernels.hpp"

#include <fmt/format.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cmath>

#include <annulus/attention/sequence/layout.hpp>
#include <annulus/base/error.hpp>
#include <annulus/prediction/simulator/cluster.hpp>

#include "attention/kernels/mask_on.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "base/kokkos/range.hpp"
#include "base/splitmix.hpp"
#include "base/with_dtype.hpp"

namespace annulus::measurement {

using plan::Pass;

/// Numbers that are alike in every run, but random: the clock that a GPU falls to depends on the bits that it
/// multiplies. Named, because device compilers want lambdas to have linkage.
template <class Exec, class T>
void fill_random(const Exec& exec, std::uint64_t seed, T* to, std::int64_t size) {
  Kokkos::parallel_for(
      "annulus::measurement::fill_random", ElementRange<Exec>(exec, 0, size),
      KOKKOS_LAMBDA(const std::int64_t i) {
        to[i] = T(near_normal(mix_bits(static_cast<std::uint64_t>(i) + splitmix_step * seed)));
      });
}

namespace {

using Exec = Kokkos::DefaultExecutionSpace;

/// One block and its operands.
template <class T>
class KernelBlock {
 public:
  KernelBlock(const BlockOptions& options, int head_dim, std::int64_t rows, BlockMask mask)
      : kernel_(options.kernel),
        scale_(static_cast<float>(1.0 / std::sqrt(head_dim))),
        positions_(Layout().shard(rows, 1, 0)),
        mask_(Mask::parse(name_of(mask), rows)),
        mask_on_(exec_, mask_),
        q_(input("q", options.heads, head_dim)),
        k_(input("k", options.kv_heads, head_dim)),
        v_(input("v", options.kv_heads, head_dim)),
        d_out_(input("d_out", options.heads, head_dim)),
        out_(result("out", options.heads, head_dim)),
        dq_(result("dq", options.heads, head_dim)),
        dk_(result("dk", options.kv_heads, head_dim)),
        dv_(result("dv", options.kv_heads, head_dim)),
        lse_(of_rows("lse", options.heads)),
        d_(of_rows("d", options.heads)) {
    problem_.heads = options.heads;
    problem_.kv_heads = options.kv_heads;
    problem_.head_dim = head_dim;
    // The backward needs what a forward leaves.
    attention::start_forward<Exec>(exec_, *out_, *lse_);
    forward(1);
    attention::row_dot<Exec, T>(exec_, *out_, *d_out_, *d_);
    exec_.fence("annulus::measure: a block is ready");
  }

  void forward(int iterations) {
    for (int i = 0; i < iterations; ++i)
      attention::forward<Exec, T>(exec_, operands(), *out_, *lse_, kernel_);
    exec_.fence("annulus::measure: forwards are done");
  }

  void backward(int iterations) {
    for (int i = 0; i < iterations; ++i) {
      attention::backward<Exec, T>(
          exec_, operands(), {.d_out = *d_out_, .lse = *lse_, .d = *d_, .dq = *dq_, .dk = *dk_, .dv = *dv_},
          kernel_);
    }
    exec_.fence("annulus::measure: backwards are done");
  }

  double flops(Pass pass) const {
    return simulator::flops(problem_, pass, mask_.pairs(positions_, positions_) * problem_.heads);
  }

 private:
  using Input = Owned<Array4<T, Exec>>;
  using Result = Owned<Array4<float, Exec>>;
  using Rows = Owned<Array3<float, Exec>>;

  attention::Operands<T, Exec> operands() const {
    return {*q_, *k_, *v_, positions_, positions_, mask_on_.rule(), scale_};
  }
  Input input(const char* name, int heads, int head_dim) {
    auto owned =
        Input::uninitialized(exec_, MemoryCategory::activations, std::string("annulus::measurement::") + name,
                             1, heads, positions_.count, head_dim);
    fill_random(exec_, ++inputs_, owned.view().data(), static_cast<std::int64_t>(owned.view().size()));
    return owned;
  }
  Result result(const char* name, int heads, int head_dim) {
    return Result::zeroed(exec_, MemoryCategory::activations, std::string("annulus::measurement::") + name, 1,
                          heads, positions_.count, head_dim);
  }
  Rows of_rows(const char* name, int heads) {
    return Rows::zeroed(exec_, MemoryCategory::activations, std::string("annulus::measurement::") + name, 1,
                        heads, positions_.count);
  }

  Exec exec_;
  std::uint64_t inputs_ = 0;  ///< made so far
  attention::Kernel kernel_;
  float scale_;
  PositionMap positions_;
  Mask mask_;
  attention::MaskOn<Exec> mask_on_;
  Input q_, k_, v_, d_out_;
  Result out_, dq_, dk_, dv_;
  Rows lse_, d_;
  plan::Problem problem_;
};

/// All sizes of one type, head dimension and mask.
template <class T>
void measure_sizes(comm::Communicator& communicator, const BlockOptions& options, int head_dim,
                   BlockMask mask, KernelMeasurement& result) {
  std::vector<std::int64_t> sizes = options.rows;
  std::ranges::sort(sizes);
  std::int64_t before = 0;
  for (const std::int64_t rows : sizes) {
    if (before > 0) {
      const double ratio = static_cast<double>(rows) / static_cast<double>(before);
      if (result.points.back().seconds.median * ratio * ratio > options.sampling.seconds) {
        result.notes.push_back(fmt::format(
            "{} {} blocks of {} rows and more, head_dim {}, take longer than {} s and were left out",
            annulus::name_of(dtype_of<T>), name_of(mask), rows, head_dim, options.sampling.seconds));
        return;
      }
    }
    KernelBlock<T> block(options, head_dim, rows, mask);
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      const Sample seconds = sample(communicator, options.sampling, [&](int iterations) {
        if (pass == Pass::forward) {
          block.forward(iterations);
        } else {
          block.backward(iterations);
        }
      });
      result.points.push_back({pass, dtype_of<T>, head_dim, rows, mask, block.flops(pass), seconds});
    }
    before = rows;
  }
}

}  // namespace

BlockMask parse_block_mask(std::string_view name, std::string_view field) {
  for (const BlockMask mask : {BlockMask::full, BlockMask::causal}) {
    if (name == name_of(mask)) return mask;
  }
  fail("{} '{}': blocks are full or causal", field, name);
}

void BlockOptions::check() const {
  const auto some = [](const char* name, const auto& list) {
    require(!list.empty(), "{}: give at least one, or leave the kernels out with --no-kernels", name);
  };
  some("--head-dim", head_dims);
  some("--dtype", dtypes);
  some("--rows", rows);
  some("--mask", masks);
  for (const int head_dim : head_dims) attention::check_head_dim(head_dim, "--head-dim");
  for (const DType type : dtypes) {
    require(type == DType::f32 || type == DType::bf16 || type == DType::f16,
            "--dtype {}: attention stores f32, bf16 or f16", annulus::name_of(type));
  }
  for (const std::int64_t each : rows)
    require(each >= 1 && each <= Mask::max_tokens, "--rows {}: give a number from 1 to {}", each,
            Mask::max_tokens);
  require(heads >= 1, "--heads is {}: it must be at least 1", heads);
  require(kv_heads >= 1 && heads % kv_heads == 0,
          "--heads {} is not divisible by --kv-heads {}: every kv head serves equally many query heads",
          heads, kv_heads);
  require(sampling.repetitions >= 1, "--repetitions is {}: it must be at least 1", sampling.repetitions);
  require(sampling.seconds > 0, "--seconds is {}: it must be positive", sampling.seconds);
}

KernelMeasurement measure_kernels(comm::Communicator& communicator, const BlockOptions& options) {
  options.check();
  KernelMeasurement result;
  for (const DType type : options.dtypes) {
    for (const int head_dim : options.head_dims) {
      for (const BlockMask mask : options.masks) {
        with_dtype<float, bfloat16, float16>(type, [&](auto zero) {
          measure_sizes<decltype(zero)>(communicator, options, head_dim, mask, result);
        });
      }
    }
  }
  return result;
}

}  // namespace annulus::measurement
