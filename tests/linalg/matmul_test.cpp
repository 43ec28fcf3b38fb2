#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <annulus/base/error.hpp>
#include <annulus/linalg/matmul.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace annulus::linalg {
namespace {

using Matrix = Array2<float, HostExec>;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

// A (rows, columns) matrix inside a wider array whose other elements are NaN: reading one of them shows in
// the result, writing one in `padding_untouched`.
class Padded {
 public:
  Padded(std::size_t rows, std::size_t columns, std::size_t before, std::size_t after, unsigned seed)
      : all_(Kokkos::view_alloc(Kokkos::WithoutInitializing, "annulus::test::padded"), rows,
             before + columns + after),
        first_(before),
        columns_(columns) {
    std::fill_n(all_.data(), all_.size(), nan);
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    const Matrix inner = view();
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < columns; ++j) inner(i, j) = uniform(random);
  }

  Matrix view() const { return Kokkos::subview(all_, Kokkos::ALL, std::pair(first_, first_ + columns_)); }

  bool padding_untouched() const {
    for (std::size_t i = 0; i < all_.extent(0); ++i)
      for (std::size_t j = 0; j < all_.extent(1); ++j)
        if ((j < first_ || j >= first_ + columns_) && !std::isnan(all_(i, j))) return false;
    return true;
  }

 private:
  Matrix all_;
  std::size_t first_, columns_;
};

float element(Op op, const Matrix& matrix, std::size_t i, std::size_t j) {
  return op == Op::none ? matrix(i, j) : matrix(j, i);
}

struct Case {
  Op op_a, op_b;
  std::size_t m, n, k;
  float alpha, beta;
  bool padded;

  std::string text() const {
    return fmt::format("m {} n {} k {} op_a {} op_b {} alpha {} beta {} padded {}", m, n, k, int(op_a),
                       int(op_b), alpha, beta, padded);
  }
};

Padded matrix_for(const Case& test, Op op, std::size_t rows, std::size_t columns, unsigned seed) {
  if (op == Op::transpose) std::swap(rows, columns);
  return test.padded ? Padded(rows, columns, 3, 2, seed) : Padded(rows, columns, 0, 0, seed);
}

void check(const Case& test) {
  SCOPED_TRACE(test.text());
  const Padded a = matrix_for(test, test.op_a, test.m, test.k, 1),
               b = matrix_for(test, test.op_b, test.k, test.n, 2),
               c = matrix_for(test, Op::none, test.m, test.n, 3);
  const Matrix left = a.view(), right = b.view(), result = c.view();
  std::vector<double> expected(test.m * test.n), scale(test.m * test.n);
  for (std::size_t i = 0; i < test.m; ++i) {
    for (std::size_t j = 0; j < test.n; ++j) {
      double sum = 0.0, magnitude = 0.0;
      for (std::size_t l = 0; l < test.k; ++l) {
        const double term = double(element(test.op_a, left, i, l)) * element(test.op_b, right, l, j);
        sum += term;
        magnitude += std::abs(term);
      }
      expected[i * test.n + j] =
          test.alpha * sum + (test.beta == 0.0f ? 0.0 : double(test.beta) * result(i, j));
      scale[i * test.n + j] = std::abs(test.alpha) * magnitude + std::abs(test.beta * result(i, j));
      if (test.beta == 0.0f) result(i, j) = nan;  // must not be read
    }
  }
  matmul<HostExec, float>(HostExec(), test.op_a, test.op_b, test.alpha, a.view(), b.view(), test.beta,
                          result);
  for (std::size_t i = 0; i < test.m; ++i) {
    for (std::size_t j = 0; j < test.n; ++j) {
      const std::size_t at = i * test.n + j;
      // Rounding of a sum of k terms: (k + 2) units of half an ulp of the sum of magnitudes bounds it.
      const double tolerance = double(test.k + 2) * 6.0e-8 * scale[at];
      ASSERT_NEAR(result(i, j), expected[at], tolerance) << "at (" << i << ", " << j << ")";
    }
  }
  EXPECT_TRUE(c.padding_untouched());
}

constexpr Op ops[] = {Op::none, Op::transpose};

TEST(Matmul, AgreesWithDoubleForAllTransposesSizesAndStrides) {
  const std::size_t sizes[] = {1, 2, 7, 33};
  for (Op op_a : ops)
    for (Op op_b : ops)
      for (std::size_t m : sizes)
        for (std::size_t n : sizes)
          for (std::size_t k : sizes)
            for (bool padded : {false, true}) check({op_a, op_b, m, n, k, 1.0f, 0.0f, padded});
}

TEST(Matmul, ScalesAndAccumulates) {
  for (Op op_a : ops)
    for (Op op_b : ops)
      for (std::size_t n : {std::size_t(1), std::size_t(9)})
        for (float alpha : {1.0f, -0.5f, 0.0f})
          for (float beta : {0.0f, 1.0f, 0.25f})
            for (bool padded : {false, true}) check({op_a, op_b, 5, n, 11, alpha, beta, padded});
}

TEST(Matmul, AgreesWithDoubleAtSizesThatBlasSplitsOverThreads) {
  for (Op op_a : ops)
    for (Op op_b : ops) check({op_a, op_b, 257, 130, 301, 1.0f, 1.0f, true});
}

TEST(Matmul, EmptyProducts) {
  for (Op op_a : ops)
    for (Op op_b : ops)
      for (bool padded : {false, true})
        for (float beta : {0.0f, 0.5f}) {
          check({op_a, op_b, 3, 4, 0, 1.0f, beta, padded});
          check({op_a, op_b, 3, 1, 0, 1.0f, beta, padded});
          check({op_a, op_b, 0, 4, 5, 1.0f, beta, padded});
          check({op_a, op_b, 3, 0, 5, 1.0f, beta, padded});
          check({op_a, op_b, 0, 0, 0, 1.0f, beta, padded});
        }
}

TEST(Matmul, DoesNotReadTheFactorsWhenAlphaIsZero) {
  const Matrix a("annulus::test::a", 2, 3), b("annulus::test::b", 3, 2), c("annulus::test::c", 2, 2);
  Kokkos::deep_copy(a, nan);
  Kokkos::deep_copy(c, 4.0f);
  matmul<HostExec, float>(HostExec(), Op::none, Op::none, 0.0f, a, b, 0.5f, c);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(c(i / 2, i % 2), 2.0f);
}

TEST(Matmul, NamesMatricesAndSizesThatDoNotFit) {
  const Matrix a("left", 2, 3), b("right", 3, 4), c("product", 2, 5);
  const auto message = [&](Op op_a, const Matrix& factor, const Matrix& product) -> std::string {
    try {
      matmul<HostExec, float>(HostExec(), op_a, Op::none, 1.0f, a, factor, 0.0f, product);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  using testing::AllOf, testing::HasSubstr;
  EXPECT_THAT(message(Op::none, b, c), AllOf(HasSubstr("'product' (2 x 5)"), HasSubstr("'left' (2 x 3)"),
                                             HasSubstr("'right' (3 x 4)")));
  EXPECT_THAT(message(Op::transpose, b, c), HasSubstr("'left' (3 x 2)"));
  EXPECT_THAT(message(Op::none, a, c), HasSubstr("'left' (2 x 3)"));
  EXPECT_EQ(message(Op::none, b, Matrix("fits", 2, 4)), "no error");
}

// Loopback ranks are threads of one process, and all of them multiply.
TEST(Matmul, CallsFromSeveralThreadsAreIndependent) {
  constexpr int callers = 4, repeats = 20;
  constexpr std::size_t size = 160;
  const Matrix a = Padded(size, size, 0, 0, 1).view(), b = Padded(size, size, 0, 0, 2).view();
  const Matrix expected("annulus::test::expected", size, size);
  matmul<HostExec, float>(HostExec(), Op::none, Op::transpose, 1.0f, a, b, 0.0f, expected);
  std::vector<int> wrong(callers, 0);
  {
    std::vector<std::jthread> threads;
    for (int caller = 0; caller < callers; ++caller) {
      threads.emplace_back([&, caller] {
        const float factor = static_cast<float>(1 << caller);  // a power of two: scaling is exact
        const Matrix mine("annulus::test::mine", size, size);
        for (int repeat = 0; repeat < repeats; ++repeat) {
          matmul<HostExec, float>(HostExec(), Op::none, Op::transpose, factor, a, b, 0.0f, mine);
          for (std::size_t i = 0; i < size; ++i)
            for (std::size_t j = 0; j < size; ++j)
              if (std::abs(mine(i, j) - factor * expected(i, j)) > factor * 1e-4f) ++wrong[caller];
        }
      });
    }
  }
  for (int caller = 0; caller < callers; ++caller) EXPECT_EQ(wrong[caller], 0) << "thread " << caller;
}

}  // namespace
}  // namespace annulus::linalg
