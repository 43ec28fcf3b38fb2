// Heads whose tables are so large that the kernel hopper launches some of them at a time (HeadSection): all
// heads of a kv head in one call against each of them in a call of its own. Elsewhere the same with few rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <annulus/attention/kernels/local.hpp>
#include <annulus/attention/sequence/layout.hpp>
#include <annulus/base/kokkos/tensor.hpp>
#include <cstdint>
#include <vector>

#include "attention/kernels/hopper/launch/head_sections.hpp"
#include "attention/kernels/mask_on.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "base/splitmix.hpp"
#include "support/exec.hpp"

namespace annulus::test {

namespace sections {

using LongRange = Kokkos::RangePolicy<TestExec, Kokkos::IndexType<std::int64_t>>;

/// Numbers between −1 and 1 that bf16 holds.
inline void fill(const TestExec& exec, const Array4<bfloat16, TestExec>& view, std::uint64_t seed) {
  bfloat16* const values = view.data();
  Kokkos::parallel_for(
      "annulus::test::fill", LongRange(exec, 0, static_cast<std::int64_t>(view.size())),
      KOKKOS_LAMBDA(std::int64_t i) {
        const std::uint64_t bits = mix_bits((static_cast<std::uint64_t>(i) * 8 + seed) * splitmix_step);
        values[i] = bfloat16(static_cast<float>(2 * static_cast<int>(bits >> 56) - 255) / 256.0f);
      });
}

/// The largest |a − b|, and the largest |b|; infinite where something is not a number.
inline double largest_error(const TestExec& exec, const Array4<float, TestExec>& a,
                            const Array4<float, TestExec>& b) {
  const float *const x = a.data(), *const y = b.data();
  double error = 0, size = 0;
  Kokkos::parallel_reduce(
      "annulus::test::largest_error", LongRange(exec, 0, static_cast<std::int64_t>(a.size())),
      KOKKOS_LAMBDA(std::int64_t i, double& most, double& largest) {
        const double of = Kokkos::fabs(static_cast<double>(y[i])),
                     off = x[i] == y[i] ? 0
                                        : Kokkos::fabs(static_cast<double>(x[i]) - static_cast<double>(y[i]));
        const bool known = off <= 1e30;
        if (!known || off > most) most = known ? off : 1e30;
        if (of > largest && of <= 1e30) largest = of;  // rows without keys have an LSE of −∞
      },
      Kokkos::Max<double>(error), Kokkos::Max<double>(size));
  return size == 0 ? 1e30 : error / size;
}

}  // namespace sections

namespace {

enum class Kind : std::uint8_t { block_lists, listed_keys, query_blocks };

/// All heads read one kv head, and each has a list of its own.
struct Sizes {
  Kind kind = Kind::block_lists;
  std::int64_t rows = 0, keys = 0;  ///< keys: of listed_keys, every (rows / keys)-th
  int heads = 1;
};

class Heads {
 public:
  static constexpr std::int64_t block = 128;
  static constexpr int head_dim = 64;

  explicit Heads(const Sizes& sizes)
      : sizes_(sizes),
        positions_(Layout().shard(sizes.rows, 1, 0)),
        keys_{.count = sizes.kind == Kind::listed_keys ? sizes.keys : sizes.rows},
        mask_(exec_, Mask::parse("causal", sizes.rows)),
        rule_(mask_.rule()),
        q_("q", 1, sizes.heads, sizes.rows, head_dim),
        k_("k", 1, 1, keys_.count, head_dim),
        v_("v", 1, 1, keys_.count, head_dim),
        d_out_("d_out", 1, sizes.heads, sizes.rows, head_dim) {
    std::uint64_t seed = 1;
    for (const auto& view : {q_, k_, v_, d_out_}) sections::fill(exec_, view, seed++);
    rule_.block_size = block;
    rule_.block_lists = sizes.heads;
    rule_.heads_of_list = 1;
    if (sizes.kind == Kind::query_blocks) {
      make_bits();
    } else {
      make_lists();
    }
    if (sizes.kind == Kind::listed_keys) list_keys();
  }

  const MaskRule& rule() const { return rule_; }
  const PositionMap& positions() const { return positions_; }
  const PositionMap& keys() const { return keys_; }

  struct Results {
    explicit Results(const Heads& of)
        : out("out", 1, of.sizes_.heads, of.sizes_.rows, head_dim),
          dq("dq", 1, of.sizes_.heads, of.sizes_.rows, head_dim),
          dk("dk", 1, 1, of.keys_.count, head_dim),
          dv("dv", 1, 1, of.keys_.count, head_dim),
          lse("lse", 1, of.sizes_.heads, of.sizes_.rows, 1),
          d("d", 1, of.sizes_.heads, of.sizes_.rows) {}
    Array4<float, TestExec> out, dq, dk, dv, lse;
    Array3<float, TestExec> d;
  };

  /// Both passes of `count` heads from `first` on; gradients of keys are added to what there is.
  void run(const Results& to, int first, int count, attention::Kernel kernel) const {
    const auto heads = Kokkos::pair(first, first + count);
    const auto of = [&](const auto& view) {
      return Kokkos::subview(view, Kokkos::ALL, heads, Kokkos::ALL, Kokkos::ALL);
    };
    MaskRule rule = rule_.from_list(first);
    rule.block_lists = count;
    attention::Operands<bfloat16, TestExec> in{of(q_), k_, v_, positions_, keys_, rule, 0.125f};
    if (sizes_.kind == Kind::listed_keys) in.kv_listed = listed_.data();
    const Strided3<float, TestExec> lse = Kokkos::subview(to.lse, Kokkos::ALL, heads, Kokkos::ALL, 0),
                                    d = Kokkos::subview(to.d, Kokkos::ALL, heads, Kokkos::ALL);
    const Strided4<float, TestExec> out = of(to.out), dq = of(to.dq);
    attention::start_forward<TestExec>(exec_, out, lse);
    attention::forward<TestExec, bfloat16>(exec_, in, out, lse, kernel);
    attention::row_dot<TestExec, bfloat16>(exec_, out, of(d_out_), d);
    attention::backward<TestExec, bfloat16>(
        exec_, in, {.d_out = of(d_out_), .lse = lse, .d = d, .dq = dq, .dk = to.dk, .dv = to.dv}, kernel);
  }

  const TestExec& exec() const { return exec_; }

 private:
  /// One block in some sixty, or in two where there are few, of each head others, and the diagonal.
  void make_lists() {
    const std::int64_t rows = rule_.block_rows(), stride = std::max<std::int64_t>(2, rows / 64);
    std::vector<std::int64_t> starts, columns;
    for (std::int64_t head = 0; head < sizes_.heads; ++head) {
      for (std::int64_t row = 0; row < rows; ++row) {
        starts.push_back(std::ssize(columns));
        for (std::int64_t column = row % stride; column < row; column += stride + head)
          columns.push_back(column);
        columns.push_back(row);
      }
      starts.push_back(std::ssize(columns));
    }
    starts_ = copy(starts);
    columns_ = copy(columns);
    rule_.block_row_starts = starts_.data();
    rule_.block_columns = columns_.data();
  }
  void make_bits() {
    const std::int64_t words = rule_.words_of_query();
    std::vector<std::uint32_t> bits(static_cast<std::size_t>(sizes_.heads * sizes_.rows * words));
    for (std::int64_t head = 0; head < sizes_.heads; ++head)
      for (std::int64_t query = 0; query < sizes_.rows; ++query)
        for (std::int64_t b = 0; b <= query / block; b += 1 + (query + head) % 17)
          bits[static_cast<std::size_t>((head * sizes_.rows + query) * words + b / 32)] |= 1u << (b % 32);
    bits_ = copy(bits);
    rule_.query_blocks = bits_.data();
  }
  void list_keys() {
    std::vector<std::int64_t> listed;
    for (std::int64_t i = 0; i < sizes_.keys; ++i) listed.push_back(i * (sizes_.rows / sizes_.keys));
    listed_ = copy(listed);
    rule_.blocks_excluded = true;
  }
  template <class T>
  static Array1<T, TestExec> copy(const std::vector<T>& values) {
    const Array1<T, TestExec> made("values", values.size());
    Kokkos::deep_copy(made, Kokkos::View<const T*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(
                                values.data(), values.size()));
    return made;
  }

  TestExec exec_;
  Sizes sizes_;
  PositionMap positions_, keys_;
  attention::MaskOn<TestExec> mask_;
  MaskRule rule_;
  Array4<bfloat16, TestExec> q_, k_, v_, d_out_;
  Array1<std::int64_t, TestExec> starts_, columns_, listed_;
  Array1<std::uint32_t, TestExec> bits_;
};

void expect_as_each_alone(const Heads& heads, int count, attention::Kernel kernel) {
  const Heads::Results together(heads), alone(heads);
  heads.run(together, 0, count, kernel);
  for (int head = 0; head < count; ++head) heads.run(alone, head, 1, kernel);
  const TestExec& exec = heads.exec();
  EXPECT_EQ(sections::largest_error(exec, together.out, alone.out), 0) << "out";
  EXPECT_EQ(sections::largest_error(exec, together.lse, alone.lse), 0) << "lse";
  EXPECT_LE(sections::largest_error(exec, together.dq, alone.dq), 1e-5) << "dq";
  EXPECT_LE(sections::largest_error(exec, together.dk, alone.dk), 1e-4) << "dk";
  EXPECT_LE(sections::largest_error(exec, together.dv, alone.dv), 1e-4) << "dv";
}

TEST(SectionsOfHeads, FewRows) {
  for (const Kind kind : {Kind::block_lists, Kind::listed_keys, Kind::query_blocks}) {
    SCOPED_TRACE(static_cast<int>(kind));
    expect_as_each_alone(Heads({kind, 600, 200, 3}), 3, attention::Kernel::automatic);
  }
}

TEST(SectionsOfHeads, MoreHeadsThanALaunchHas) {
  if (attention::kernel_for<TestExec, bfloat16>(64) != attention::Kernel::hopper)
    GTEST_SKIP() << "this is no GPU of Hopper's";
  constexpr std::int64_t long_rows = std::int64_t{1} << 19, needed = std::int64_t{12} << 30;
  if (device_memory().free < needed) GTEST_SKIP() << "12 GiB of device memory are needed";
  for (const Sizes& sizes : {Sizes{Kind::block_lists, long_rows, 0, 5},
                             {Kind::listed_keys, long_rows, long_rows / 4, 6},
                             {Kind::query_blocks, 1 << 15, 0, 12}}) {
    SCOPED_TRACE(static_cast<int>(sizes.kind));
    const Heads heads(sizes);
    ASSERT_LT(attention::hopper::lists_at_once(heads.rule(), heads.positions(), heads.keys(),
                                               sizes.kind == Kind::listed_keys),
              sizes.heads);
    expect_as_each_alone(heads, sizes.heads, attention::Kernel::hopper);
  }
}

}  // namespace
}  // namespace annulus::test
