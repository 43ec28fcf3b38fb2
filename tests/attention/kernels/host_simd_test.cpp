// The pieces of the host's SIMD kernel, and what happens at the edges of its tiles. local_test.cpp runs it
// through every mask, layout and storage type.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <thread>

#include <annulus/base/division.hpp>

#include "attention/kernels/host_simd/host_simd.hpp"
#include "attention/kernels/host_simd/key_spans.hpp"
#include "attention/kernels/host_simd/order.hpp"
#include "attention/kernels/host_simd/pack.hpp"
#include "attention/kernels/host_simd/pointwise.hpp"
#include "attention/kernels/host_simd/products.hpp"
#include "attention/kernels/local_run.hpp"
#include "attention/kernels/masks.hpp"
#include "support/allocations.hpp"

namespace annulus::test {
namespace {

namespace simd = attention::host_simd;
using attention::Kernel;

constexpr float float_infinity = std::numeric_limits<float>::infinity();

// --- The vector exponential ------------------------------------------------------------------------------

/// 2^x as the kernels compute it, the same in every lane.
float exp2_of(float x) {
  float lanes[simd::width];
  simd::store(simd::exp2(simd::Vector(x)), lanes);
  for (const float lane : lanes) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(lane), std::bit_cast<std::uint32_t>(lanes[0])) << x;
  }
  return lanes[0];
}

/// Largest error, in units in the last place of the exact value, over every `step`-th float of [-126, 128).
double exp2_error(std::uint32_t step) {
  double worst = 0;
  for (const float sign : {1.0f, -1.0f}) {
    const auto last = std::bit_cast<std::uint32_t>(sign > 0 ? std::nextafter(128.0f, 0.0f) : 126.0f);
    for (std::uint64_t bits = 0; bits <= last; bits += std::uint64_t{step} * simd::width) {
      float x[simd::width], y[simd::width];
      for (int i = 0; i < simd::width; ++i) {
        const std::uint64_t mine = std::min<std::uint64_t>(bits + std::uint64_t{step} * i, last);
        x[i] = sign * std::bit_cast<float>(static_cast<std::uint32_t>(mine));
      }
      simd::store(simd::exp2(simd::load(x)), y);
      for (int i = 0; i < simd::width; ++i) {
        const double exact = std::exp2(static_cast<double>(x[i]));
        const double unit = std::ldexp(1.0, std::ilogb(exact) - 23);
        const double error = std::abs(y[i] - exact) / unit;
        if (std::isnan(error)) return error;
        worst = std::max(worst, error);
      }
    }
  }
  return worst;
}

constexpr double exp2_bound = 1.02;  // as documented

TEST(HostSimdExp2, ErrorIsWithinItsBound) {
  EXPECT_LE(exp2_error(4999), exp2_bound);
}

TEST(HostSimdExp2, ErrorIsWithinItsBoundForEveryFloatSlow) {
  EXPECT_LE(exp2_error(1), exp2_bound);
}

TEST(HostSimdExp2, IsExactAtIntegers) {
  for (int n = -126; n < 128; ++n) EXPECT_EQ(exp2_of(static_cast<float>(n)), std::ldexp(1.0f, n)) << n;
}

TEST(HostSimdExp2, IsZeroBelowAndNanForNan) {
  for (const float x :
       {-float_infinity, -1e30f, -1e9f, -1000.0f, -150.0f, std::nextafter(-126.0f, -float_infinity)}) {
    EXPECT_EQ(exp2_of(x), 0.0f) << x;
  }
  EXPECT_TRUE(std::isnan(exp2_of(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(exp2_of(-std::numeric_limits<float>::quiet_NaN())));
}

// --- Products and softmax of a tile ----------------------------------------------------------------------

std::vector<float> random_floats(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(count);
  for (float& number : numbers) number = normal(generator);
  return numbers;
}

TEST(HostSimdProducts, EqualTheNaiveProduct) {
  constexpr int stride = 80, rows = 3 * simd::block_rows;
  for (int vectors = 1; vectors <= simd::block_vectors; ++vectors) {
    for (const int depth : {0, 1, 2, 7, 40}) {
      const auto a = random_floats(80 * stride, 1), b = random_floats(80 * stride, 2),
                 before = random_floats(80 * stride, 3), factor = random_floats(simd::panel, 4);
      auto product = before, sum = before, scaled_sum = before;
      simd::multiply({rows, vectors, depth}, {a.data(), stride}, {b.data(), stride},
                     {product.data(), stride});
      simd::accumulate({rows, vectors, depth}, {a.data(), stride}, {b.data(), stride}, nullptr,
                       {sum.data(), stride});
      simd::accumulate({rows, vectors, depth}, {a.data(), stride}, {b.data(), stride}, factor.data(),
                       {scaled_sum.data(), stride});
      for (int r = 0; r < 80; ++r) {
        for (int lane = 0; lane < stride; ++lane) {
          const int at = r * stride + lane;
          if (r >= rows || lane >= vectors * simd::width) {  // nothing else is written
            ASSERT_EQ(product[at], before[at]);
            ASSERT_EQ(sum[at], before[at]);
            continue;
          }
          double by_rows = 0, by_columns = 0;
          for (int k = 0; k < depth; ++k) {
            by_rows += static_cast<double>(a[r * stride + k]) * b[k * stride + lane];
            by_columns += static_cast<double>(a[k * stride + r]) * b[k * stride + lane];
          }
          ASSERT_NEAR(product[at], by_rows, 2e-5) << vectors << " " << depth;
          ASSERT_NEAR(sum[at], before[at] + by_columns, 2e-5) << vectors << " " << depth;
          ASSERT_NEAR(scaled_sum[at], factor[lane] * before[at] + by_columns, 2e-5)
              << vectors << " " << depth;
        }
      }
    }
  }
}

TEST(HostSimdSoftmax, KeepsLanesWithoutKeysEmpty) {
  constexpr int rows = 5;
  std::vector<float> scores = random_floats(rows * simd::panel, 5);
  for (int row = 0; row < rows; ++row) scores[row * simd::panel] = -float_infinity;
  const auto before = scores;
  std::vector<float> highest(simd::panel, -float_infinity), sum(simd::panel, 0.0f), factor(simd::panel, 9.0f);
  simd::softmax(rows, simd::block_vectors, scores.data(), highest.data(), sum.data(), factor.data());
  EXPECT_EQ(highest[0], -float_infinity);
  EXPECT_EQ(sum[0], 0.0f);
  for (int lane = 1; lane < simd::panel; ++lane) {
    float top = -float_infinity;
    double total = 0;
    for (int row = 0; row < rows; ++row) top = std::max(top, before[row * simd::panel + lane]);
    for (int row = 0; row < rows; ++row)
      total += std::exp2(static_cast<double>(before[row * simd::panel + lane]) - top);
    EXPECT_EQ(highest[lane], top);
    EXPECT_NEAR(sum[lane], total, 1e-6);
    EXPECT_EQ(factor[lane], 0.0f);  // nothing was there before
  }
  // The second half moves the maximum of every lane up by one.
  auto more = before;
  for (float& score : more) score += 1.0f;
  const auto first_sum = sum;
  simd::softmax(rows, simd::block_vectors, more.data(), highest.data(), sum.data(), factor.data());
  for (int lane = 1; lane < simd::panel; ++lane) {
    EXPECT_NEAR(factor[lane], 0.5f, 1e-6);
    EXPECT_NEAR(sum[lane], 1.5f * first_sum[lane], 1e-5);
  }
  EXPECT_EQ(sum[0], 0.0f);
}

TEST(HostSimdPack, TransposesAndPads) {
  constexpr int columns = 24, stride = 30, to_stride = simd::packed_stride(columns);
  const auto from = random_floats(stride * simd::panel, 6);
  for (const int rows : {1, simd::panel / 2 + 1, simd::panel}) {
    std::vector<float> packed((rows + 2) * to_stride, 7.0f), panel(columns * simd::panel, 7.0f);
    simd::pack_rows(simd::StridedRows(from.data(), stride), rows, columns, 2, {packed.data(), to_stride});
    simd::pack_panel(simd::StridedRows(from.data(), stride), rows, columns, 0.5f, panel.data());
    for (int c = 0; c < round_up(columns, simd::width); ++c) {
      for (int r = 0; r < rows + 2; ++r) {
        EXPECT_EQ(packed[r * to_stride + c], r < rows && c < columns ? from[r * stride + c] : 0.0f);
      }
    }
    for (int c = 0; c < columns; ++c) {
      for (int lane = 0; lane < simd::panel; ++lane) {
        EXPECT_EQ(panel[c * simd::panel + lane], lane < rows ? 0.5f * from[lane * stride + c] : 0.0f);
      }
    }
  }
}

// --- Scratch of a thread -----------------------------------------------------------------------------------

TEST(HostSimdScratch, KeepsWhatWasGivenBack) {
  std::jthread([] {  // whose pool is empty
    const void *of_large, *of_small;
    {
      const simd::PooledScratch<char> large(1000), small(100);
      of_large = large.view().data();
      of_small = small.view().data();
    }
    const Allocations allocations;
    const simd::PooledScratch<char> tight(60), wide(60);
    EXPECT_EQ(tight.view().data(), of_small) << "not the smallest that holds it";
    EXPECT_EQ(wide.view().data(), of_large);
    EXPECT_EQ(allocations.labels().size(), 0u);
    const simd::PooledScratch<char> third(60);
    EXPECT_EQ(third.view().size(), 60u);
    EXPECT_THAT(allocations.labels(), testing::ElementsAre(testing::HasSubstr("host_simd::scratch")));
  })
      .join();
}

TEST(HostSimdScratch, LargerBuffersReplaceSmallerOnes) {
  const auto in_use = [] { return test::in_use(MemoryKind::host, MemoryCategory::workspace); };
  const std::int64_t before = in_use();
  std::jthread([&] {
    for (const std::size_t bytes : {100, 200, 400, 800}) simd::PooledScratch<char> scratch(bytes);
    EXPECT_EQ(in_use() - before, 800);
  }).join();
  EXPECT_EQ(in_use(), before) << "the thread's buffers go with it";
}

// --- Tiles -------------------------------------------------------------------------------------------------

TEST(HostSimdOrder, TakesEveryTileOnceAndThoseOfAHeadInOrder) {
  for (const int sequences : {1, 2, 7, 32}) {
    for (const int tiles : {1, 3, 22}) {
      for (const int threads : {1, 2, 5, 64}) {
        const simd::TicketOrder order(sequences, tiles, threads);
        std::vector<int> next(sequences, 0);
        for (int ticket = 0; ticket < sequences * tiles; ++ticket) {
          const auto [sequence, tile] = order(ticket);
          ASSERT_TRUE(0 <= sequence && sequence < sequences);
          ASSERT_EQ(tile, next[sequence]++) << sequences << " " << tiles << " " << threads << " " << ticket;
        }
        for (const int count : next) EXPECT_EQ(count, tiles);
      }
    }
  }
}

TEST(HostSimdMask, MasksExactlyWhatTheRuleForbids) {
  const MaskTexts masks;
  const HostExec exec;
  constexpr std::int64_t tokens = 131;
  for (const std::string& text : masks.all(tokens)) {
    const Mask mask = Mask::parse(text, tokens);
    for (const char* layout_text : {"contiguous", "zigzag", "striped", "block-striped:5"}) {
      const Layout layout = Layout::parse(layout_text);
      const PositionMap q = layout.shard(tokens, 2, 1), k = layout.shard(tokens, 2, 0);
      const auto spans = simd::key_spans(exec, q, {k}, mask.rule());
      exec.fence("annulus::test: spans");
      for (std::int64_t i = 0; i < q.count; ++i) {
        const simd::KeySpan span = spans.view()(i);
        EXPECT_TRUE(0 <= span.begin && span.begin <= span.end && span.end <= k.count);
        if (i > 0) {
          EXPECT_TRUE(spans.view()(i - 1).begin <= span.begin && spans.view()(i - 1).end <= span.end);
        }
      }
      const RowRange rows{3, 40}, keys{7, 61};
      std::vector<float> scores(rows.size() * keys.size(), 1.0f);
      simd::mask_tile({mask.rule(), q, {k}, spans.view().data()}, simd::QueryRows::of(rows), keys,
                      {scores.data(), keys.size(), 1});
      for (std::int64_t i = rows.begin; i < rows.end; ++i) {
        for (std::int64_t j = keys.begin; j < keys.end; ++j) {
          EXPECT_EQ(scores[(i - rows.begin) * keys.size() + j - keys.begin],
                    mask.rule().allows(q(i), k(j)) ? 1.0f : -float_infinity)
              << text << " " << layout_text << " " << i << " " << j;
        }
      }
    }
  }
}

void expect_reference(const AttentionShape& shape, const std::string& mask, const LocalRun& run) {
  const AttentionProblem problem = AttentionProblem::random(shape, mask);
  EXPECT_EQ(differences(run_local<float>(HostExec(), problem, run), problem.reference(), fp32_tolerance), "")
      << shape.tokens << " tokens, head_dim " << shape.head_dim << ", " << mask << ", " << run.shards
      << " shards";
}

TEST(HostSimd, TileEdges) {
  constexpr int queries = simd::forward_panels * simd::panel, keys = simd::backward_panels(16) * simd::panel;
  std::set<std::int64_t> lengths{1};
  for (const int tile :
       {simd::width, simd::panel, simd::forward_kv_rows, simd::backward_q_rows, queries, keys}) {
    for (const int more : {-1, 0, 1}) lengths.insert(std::max(1, tile + more));
  }
  lengths.insert(2 * queries + 1);
  for (const std::int64_t tokens : lengths) {
    for (const char* mask : {"full", "causal", "window:30,3"}) {
      expect_reference({tokens, 16}, mask, {.kernel = Kernel::host_simd});
    }
  }
}

TEST(HostSimd, SmallKeyTilesOfLargeHeadDimensions) {
  for (const char* mask : {"full", "causal", "window:100,0", "dilated:4,60"}) {
    expect_reference({230, 136, 1, 2, 1}, mask, {.kernel = Kernel::host_simd});
  }
}

TEST(HostSimd, ManyTilesAndAnyNumberOfThreads) {
  const HostExec all, one = Kokkos::Experimental::partition_space(HostExec(), 1, 1)[1];
  const MaskTexts masks;
  std::vector<std::string> texts = masks.all(901);
  texts.push_back("window:300,0");
  texts.push_back("documents:0,150,151,600+window:200,0");
  for (const std::string& mask : texts) {
    const AttentionProblem problem = AttentionProblem::random({901, 16, 1, 4, 2}, mask);
    const LocalRun run{.kernel = Kernel::host_simd};
    const AttentionResult result = run_local<float>(all, problem, run);
    EXPECT_EQ(differences(result, problem.reference(), fp32_tolerance), "") << mask;
    for (const HostExec& exec : {all, one})
      EXPECT_TRUE(same_bits(run_local<float>(exec, problem, run), result)) << mask;
  }
}

TEST(HostSimd, KeysThatNobodySeesChangeNothing) {
  const HostExec exec;
  const AttentionProblem problem = AttentionProblem::random({400, 16, 1, 2, 1}, "causal");
  const PositionMap early = Layout().shard(400, 2, 0), late = Layout().shard(400, 2, 1);
  const attention::MaskOn<HostExec> mask(exec, problem.mask);
  const AttentionArrays<float, HostExec> arrays(exec, problem, early, late, 7.0f);
  const auto in = arrays.operands(mask.rule());
  simd::forward<float>(exec, in, arrays.out.view(), arrays.lse.rows());
  simd::backward<float>(exec, in, arrays.gradients());
  const AttentionResult result = arrays.results(exec);
  for (const auto& [array, positions] : {std::pair{&result.out, early},
                                         {&result.lse, early},
                                         {&result.dq, early},
                                         {&result.dk, late},
                                         {&result.dv, late}}) {
    for (std::int64_t h = 0; h < array->heads; ++h)
      for (std::int64_t i = 0; i < positions.count; ++i)
        for (std::int64_t c = 0; c < array->width; ++c) ASSERT_EQ(array->row(0, h, positions(i))[c], 7.0);
  }
}

TEST(HostSimd, AppliesToTheHeadDimensionsItWasBuiltFor) {
  const auto applies = [](int head_dim, std::size_t last_stride) {
    const Kokkos::LayoutStride layout(1, 4, 1, 4, 2, 2 * head_dim, head_dim, last_stride);
    attention::Operands<float, HostExec> in;
    in.q = in.k = in.v = Strided4<const float, HostExec>(nullptr, layout);
    return simd::applies(in);
  };
  for (int head_dim = 1; head_dim <= 300; ++head_dim) {
    EXPECT_EQ(applies(head_dim, 1), head_dim >= 16 && head_dim <= 256 && head_dim % 8 == 0) << head_dim;
  }
  EXPECT_FALSE(applies(64, 2));
}

}  // namespace
}  // namespace annulus::test
