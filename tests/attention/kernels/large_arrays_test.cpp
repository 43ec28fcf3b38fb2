// Arrays in which an element's offset does not fit into 32 bits.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <tuple>

#include "attention/kernels/local_run.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "base/splitmix.hpp"
#include "support/exec.hpp"

#ifdef ANNULUS_ATTENTION_MMA

namespace annulus::test {
namespace {

using attention::Kernel;

constexpr std::int64_t two_to_29 = std::int64_t{1} << 29, two_to_32 = std::int64_t{1} << 32;
constexpr float not_written = std::numeric_limits<float>::quiet_NaN();

/// P and dS are rounded to bf16 before the tensor cores multiply them.
double tolerance_of(Kernel kernel) {
  return kernel == Kernel::portable ? fp32_tolerance : 5e-3;
}

/// Skips the test where `kernel` does not run, and where the device has less memory than `arrays` and a
/// kernel's tables take.
void skip_unless_possible(Kernel kernel, std::int64_t arrays) {
  if (kernel == Kernel::hopper && attention::kernel_for<TestExec, bfloat16>(128) != Kernel::hopper) {
    GTEST_SKIP() << "the kernel hopper does not run on this GPU: it is none of Hopper's";
  }
  const std::int64_t bytes = arrays + (std::int64_t{1} << 30), free = device_memory().free;
  if (free < bytes)
    GTEST_SKIP() << fmt::format("{} bytes of device memory are needed, {} are free", bytes, free);
}

void expect_near(const AttentionResult& result, const AttentionResult& expected, Kernel kernel) {
  EXPECT_EQ(differences(result, expected, tolerance_of(kernel)), "");
  EXPECT_LE(relative_error(result.lse, expected.lse), fp32_tolerance);  // nothing is rounded on the way
}

/// Arrays whose neighbours in one dimension lie far apart.
struct FarNeighbours {
  const char* name;
  AttentionShape shape;
  int dimension;        ///< 0: sequences, 1: heads, 2: rows
  std::int64_t stride;  ///< of that dimension, in elements
};
const FarNeighbours far_neighbours[] = {
    {"Sequences", {.tokens = 200, .head_dim = 128, .batch = 2, .heads = 4, .kv_heads = 2}, 0, two_to_32 + 64},
    {"Heads", {.tokens = 200, .head_dim = 128, .heads = 2, .kv_heads = 2}, 1, two_to_32 + 64},
    {"Rows", {.tokens = 300, .head_dim = 128, .heads = 4, .kv_heads = 2}, 2, two_to_32 / 256 + 64},
};

/// Arrays of one memory. What lies between far neighbours of one are elements of the others, then nothing.
template <class T>
class FarArrays {
 public:
  FarArrays(const FarNeighbours& how, int arrays)
      : how_(how),
        memory_(Kokkos::view_alloc(Kokkos::WithoutInitializing, "annulus::test::memory"),
                elements(how, arrays)) {}

  static std::int64_t elements(const FarNeighbours& how, int arrays) {
    return (extents_of(how)[how.dimension] - 1) * how.stride + arrays * elements_of_neighbour(how);
  }

  /// (batch, heads, tokens, width)
  Strided4<T, TestExec> array(int number, std::int64_t heads, std::int64_t width) const {
    const AttentionShape& shape = how_.shape;
    const std::int64_t extents[] = {shape.batch, heads, shape.tokens, width};
    std::int64_t strides[] = {0, 0, 0, 1}, dense = width;
    for (int i = 2; i >= 0; --i) {
      strides[i] = i == how_.dimension ? how_.stride : dense;
      if (i != how_.dimension) dense *= extents[i];
    }
    return Strided4<T, TestExec>(memory_.data() + number * elements_of_neighbour(how_),
                                 Kokkos::LayoutStride(extents[0], strides[0], extents[1], strides[1],
                                                      extents[2], strides[2], extents[3], strides[3]));
  }
  /// (batch, heads, tokens)
  Strided3<T, TestExec> rows(int number, std::int64_t heads) const {
    return Kokkos::subview(array(number, heads, 1), Kokkos::ALL, Kokkos::ALL, Kokkos::ALL, 0);
  }

 private:
  static std::array<std::int64_t, 3> extents_of(const FarNeighbours& how) {
    return {how.shape.batch, how.shape.heads, how.shape.tokens};
  }
  /// Elements of a neighbour of the largest array.
  static std::int64_t elements_of_neighbour(const FarNeighbours& how) {
    std::int64_t count = how.shape.head_dim;
    for (int i = 0; i < 3; ++i) count *= i == how.dimension ? 1 : extents_of(how)[i];
    return count;
  }

  FarNeighbours how_;
  Array1<T, TestExec> memory_;
};

class LargeStrides : public testing::TestWithParam<std::tuple<Kernel, FarNeighbours>> {
 protected:
  static constexpr int inputs = 4, results = 6;

  void SetUp() override {
    skip_unless_possible(kernel(), 2 * FarArrays<bfloat16>::elements(how(), inputs) +
                                       4 * FarArrays<float>::elements(how(), results));
  }
  Kernel kernel() const { return std::get<0>(GetParam()); }
  const FarNeighbours& how() const { return std::get<1>(GetParam()); }
};

TEST_P(LargeStrides, BothPassesEqualTheReference) {
  const TestExec exec;
  const AttentionProblem problem = AttentionProblem::random(how().shape, "causal", DType::bf16);
  const AttentionResult expected = problem.reference();
  const PositionMap positions = Layout().shard(problem.shape.tokens, 1, 0);
  const attention::MaskOn<TestExec> mask(exec, problem.mask);

  const FarArrays<bfloat16> input_arrays(how(), inputs);
  const auto load = [&](int number, const Array& whole) {
    const auto dense = rows_on<bfloat16>(exec, whole, positions);
    const auto view = input_arrays.array(number, whole.heads, whole.width);
    Kokkos::deep_copy(exec, view, dense.view());
    exec.fence("annulus::test: an input is loaded");
    return Strided4<const bfloat16, TestExec>(view);
  };
  const attention::Operands<bfloat16, TestExec> in{load(0, problem.q),
                                                   load(1, problem.k),
                                                   load(2, problem.v),
                                                   positions,
                                                   positions,
                                                   mask.rule(),
                                                   static_cast<float>(problem.scale)};
  const Strided4<const bfloat16, TestExec> d_out = load(3, problem.d_out);

  const std::int64_t heads = problem.shape.heads, kv_heads = problem.shape.kv_heads;
  const FarArrays<float> result_arrays(how(), results);
  const auto out = result_arrays.array(0, heads, 128), dq = result_arrays.array(1, heads, 128),
             dk = result_arrays.array(2, kv_heads, 128), dv = result_arrays.array(3, kv_heads, 128),
             lse = result_arrays.array(4, heads, 1);
  const auto lse_rows = result_arrays.rows(4, heads), d = result_arrays.rows(5, heads);
  for (const bool fresh : {true, false}) {
    SCOPED_TRACE(fresh ? "fresh results" : "results that are added to");
    for (const auto& view : {out, dq, dk, dv, lse}) Kokkos::deep_copy(exec, view, fresh ? not_written : 0.0f);
    attention::KernelOptions options = kernel();
    options.fresh_out = options.fresh_dq = options.fresh_dkv = fresh;
    if (!fresh) attention::start_forward<TestExec>(exec, out, lse_rows);
    attention::forward(exec, in, out, lse_rows, options);
    attention::row_dot<TestExec, bfloat16>(exec, out, d_out, d);
    attention::backward<TestExec, bfloat16>(
        exec, in, {.d_out = d_out, .lse = lse_rows, .d = d, .dq = dq, .dk = dk, .dv = dv}, options);

    AttentionResult result = problem.empty_result();
    const auto store = [&](const Strided4<float, TestExec>& view, Array& whole) {
      const StridedArray<float, TestExec> dense(exec, Storage::dense, whole.batch, whole.heads, whole.tokens,
                                                whole.width);
      Kokkos::deep_copy(exec, dense.view(), view);
      exec.fence("annulus::test: a result is there");
      dense.store(whole, positions);
    };
    store(out, result.out);
    store(lse, result.lse);
    store(dq, result.dq);
    store(dk, result.dk);
    store(dv, result.dv);
    expect_near(result, expected, kernel());
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, LargeStrides,
                         testing::Combine(testing::Values(Kernel::portable, Kernel::mma, Kernel::hopper),
                                          testing::ValuesIn(far_neighbours)),
                         [](const auto& info) {
                           return fmt::format("{}_{}", name_of(std::get<0>(info.param)),
                                              std::get<1>(info.param).name);
                         });

/// Element `index` of the input `array`: a hash of all of its bits, and a number that bf16 holds exactly.
KOKKOS_INLINE_FUNCTION float hashed_number(std::int64_t index, int array) {
  const std::uint64_t z = mix_bits(
      (static_cast<std::uint64_t>(index) * 4 + static_cast<std::uint64_t>(array) + 1) * splitmix_step);
  return static_cast<float>(2 * static_cast<int>(z >> 56) - 255) / 256.0f;
}

// RangePolicy's own index has 32 bits on a GPU.
using LongRange = Kokkos::RangePolicy<TestExec, Kokkos::IndexType<std::int64_t>>;

void fill_with_hashes(const TestExec& exec, const Array4<bfloat16, TestExec>& view, int array) {
  bfloat16* const values = view.data();
  Kokkos::parallel_for(
      "annulus::test::hashes", LongRange(exec, 0, static_cast<std::int64_t>(view.size())),
      KOKKOS_LAMBDA(std::int64_t i) { values[i] = bfloat16(hashed_number(i, array)); });
}

template <class View>
std::int64_t count_nan(const TestExec& exec, const View& view) {
  const float* const values = view.data();
  std::int64_t count = 0;
  Kokkos::parallel_reduce(
      "annulus::test::count_nan", LongRange(exec, 0, static_cast<std::int64_t>(view.size())),
      KOKKOS_LAMBDA(std::int64_t i, std::int64_t & sum) { sum += Kokkos::isnan(values[i]) ? 1 : 0; }, count);
  return count;
}

/// Runs both passes over one block. Its rows see 100 keys, so that few rows of a head are a problem of their
/// own.
class LargeBlock {
  using Input = Array4<bfloat16, TestExec>;
  using Result = Array4<float, TestExec>;
  using RowNumbers = Array3<float, TestExec>;

 public:
  static constexpr std::int64_t rows = (std::int64_t{1} << 20) + 1000, head_dim = 128, keys_of_row = 100;
  static constexpr float scale = 0.25f;  // scores have a standard deviation of 1

  static std::int64_t elements(int heads) { return heads * rows * head_dim; }
  static std::int64_t bytes(int heads) { return elements(heads) * (4 * 2 + 4 * 4) + heads * rows * (2 * 4); }

  explicit LargeBlock(int heads)
      : heads_(heads),
        q_(array<Input>(head_dim)),
        k_(array<Input>(head_dim)),
        v_(array<Input>(head_dim)),
        d_out_(array<Input>(head_dim)),
        out_(array<Result>(head_dim)),
        dq_(array<Result>(head_dim)),
        dk_(array<Result>(head_dim)),
        dv_(array<Result>(head_dim)),
        lse_(array<RowNumbers>()),
        d_(array<RowNumbers>()) {}

  void run(const TestExec& exec) const {
    int number = 0;
    for (const auto& input : {q_, k_, v_, d_out_}) fill_with_hashes(exec, input, number++);
    for (const auto& result : {out_, dq_, dk_, dv_}) Kokkos::deep_copy(exec, result, not_written);
    Kokkos::deep_copy(exec, lse_, not_written);
    const PositionMap positions = Layout().shard(rows, 1, 0);
    const attention::MaskOn<TestExec> mask(exec, mask_of(rows));
    const attention::Operands<bfloat16, TestExec> in{q_, k_, v_, positions, positions, mask.rule(), scale};
    attention::KernelOptions options = Kernel::hopper;
    options.fresh_out = options.fresh_dq = options.fresh_dkv = true;
    attention::forward(exec, in, out_, lse_, options);
    attention::row_dot<TestExec, bfloat16>(exec, out_, d_out_, d_);
    attention::backward<TestExec, bfloat16>(
        exec, in, {.d_out = d_out_, .lse = lse_, .d = d_, .dq = dq_, .dk = dk_, .dv = dv_}, options);
    exec.fence("annulus::test: both passes are done");
  }

  void expect_all_written(const TestExec& exec) const {
    EXPECT_EQ(count_nan(exec, out_), 0) << "out";
    EXPECT_EQ(count_nan(exec, lse_), 0) << "lse";
    EXPECT_EQ(count_nan(exec, dq_), 0) << "dq";
    EXPECT_EQ(count_nan(exec, dk_), 0) << "dk";
    EXPECT_EQ(count_nan(exec, dv_), 0) << "dv";
  }

  /// Compares rows around an element with the reference.
  void expect_exact_around(std::int64_t element) const {
    constexpr std::int64_t count = 512;
    const std::int64_t row = element / head_dim, head = row / rows;
    const std::int64_t begin = std::clamp<std::int64_t>(row % rows - count / 2, 0, rows - count);
    SCOPED_TRACE(fmt::format("rows {} to {} of head {}, around the element {}", begin, begin + count - 1,
                             head, element));
    const std::int64_t first = head * rows + begin;
    const AttentionProblem problem{.shape = {.tokens = count, .head_dim = head_dim},
                                   .mask = mask_of(count),
                                   .scale = scale,
                                   .q = input_rows(first, count, 0),
                                   .k = input_rows(first, count, 1),
                                   .v = input_rows(first, count, 2),
                                   .d_out = input_rows(first, count, 3)};
    const AttentionResult result{.out = result_rows(out_, first, count, head_dim),
                                 .lse = result_rows(lse_, first, count, 1),
                                 .dq = result_rows(dq_, first, count, head_dim),
                                 .dk = result_rows(dk_, first, count, head_dim),
                                 .dv = result_rows(dv_, first, count, head_dim)};
    // The first queries see keys in front of these rows, the last keys are seen from behind them.
    const std::int64_t first_whole = begin == 0 ? 0 : keys_of_row - 1,
                       end_of_keys = begin + count == rows ? count : count - (keys_of_row - 1);
    const auto inner = [&](const AttentionResult& all) {
      return AttentionResult{.out = part(all.out, first_whole, count),
                             .lse = part(all.lse, first_whole, count),
                             .dq = part(all.dq, first_whole, count),
                             .dk = part(all.dk, first_whole, end_of_keys),
                             .dv = part(all.dv, first_whole, end_of_keys),
                             .dq_size = all.dq_size,
                             .dk_size = all.dk_size};
    };
    expect_near(inner(result), inner(problem.reference()), Kernel::hopper);
  }

 private:
  template <class View, class... Width>
  View array(Width... width) const {
    return View(Kokkos::view_alloc(Kokkos::WithoutInitializing, "annulus::test::block"), 1, heads_, rows,
                width...);
  }
  static Mask mask_of(std::int64_t tokens) {
    return Mask::parse(fmt::format("window:{},0", keys_of_row - 1), tokens);
  }
  static Array input_rows(std::int64_t first_row, std::int64_t count, int number) {
    Array array(1, 1, count, head_dim);
    for (std::int64_t i = 0; i < count * head_dim; ++i)
      array.values[static_cast<std::size_t>(i)] = hashed_number(first_row * head_dim + i, number);
    return array;
  }
  template <class View>
  static Array result_rows(const View& view, std::int64_t first_row, std::int64_t count, std::int64_t width) {
    const Array1<const float, TestExec> rows_of_view(view.data() + first_row * width, count * width);
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), rows_of_view);
    Array array(1, 1, count, width);
    std::copy_n(host.data(), host.size(), array.values.begin());
    return array;
  }
  static Array part(const Array& array, std::int64_t begin, std::int64_t end) {
    Array result(1, 1, end - begin, array.width);
    std::copy(array.row(0, 0, begin), array.row(0, 0, end), result.values.begin());
    return result;
  }

  int heads_;
  Input q_, k_, v_, d_out_;  // (1, heads, rows, head_dim)
  Result out_, dq_, dk_, dv_;
  RowNumbers lse_, d_;  // (1, heads, rows)
};

/// The parameter: heads of queries, and as many of keys. From 16 on a block has more than 2³¹ elements (52 GB
/// of arrays), from 32 on more than 2³² (103 GB).
class LargeBlocks : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { skip_unless_possible(Kernel::hopper, LargeBlock::bytes(GetParam())); }
};

TEST_P(LargeBlocks, RowsBeyond32BitsEqualTheReference) {
  const TestExec exec;
  const LargeBlock block(GetParam());
  block.run(exec);
  block.expect_all_written(exec);
  // Where elements, and bytes of 16-bit and 32-bit elements, pass 2³¹ and 2³².
  const std::int64_t elements = LargeBlock::elements(GetParam());
  block.expect_exact_around(0);
  for (std::int64_t limit = two_to_29; limit <= two_to_32 && limit < elements; limit *= 2)
    block.expect_exact_around(limit);
  block.expect_exact_around(elements - 1);
}

INSTANTIATE_TEST_SUITE_P(Heads, LargeBlocks, testing::Values(16, 32), testing::PrintToStringParamName());

}  // namespace
}  // namespace annulus::test

#endif
