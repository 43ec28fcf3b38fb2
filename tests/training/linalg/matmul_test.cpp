#include <thread>

#include "support/allocations.hpp"
#include "support/error_text.hpp"
#include "training/linalg/portable.hpp"
#include "training/linalg/test_matrix.hpp"

namespace annulus::linalg {
namespace {

using test::TestExec, test::TestMatrix;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr Op ops[] = {Op::none, Op::transpose};

enum class Addend { in_place, separate };

struct Case {
  Op op_a, op_b;
  std::size_t m, n, k;
  float alpha, beta;
  bool padded;
  Addend addend = Addend::in_place;

  Gemm gemm() const { return {.op_a = op_a, .op_b = op_b, .alpha = alpha, .beta = beta}; }
  std::string text() const {
    return fmt::format("m {} n {} k {} op_a {} op_b {} alpha {} beta {} padded {} addend {}", m, n, k,
                       int(op_a), int(op_b), alpha, beta, padded, int(addend));
  }
};

// What is tested: matmul, and the kernel for devices without a library.
struct Library {
  template <class T, class TC>
  static void multiply(const Case& c, const Array2<const T, TestExec>& a, const Array2<const T, TestExec>& b,
                       const Array2<TC, TestExec>& addend, const Array2<TC, TestExec>& product) {
    if (c.addend == Addend::separate)
      matmul<TestExec, T, TC>(TestExec(), c.gemm(), a, b, addend, product);
    else
      matmul<TestExec, T, TC>(TestExec(), c.gemm(), a, b, product);
  }
};
struct Portable {
  template <class T, class TC>
  static void multiply(const Case& c, const Array2<const T, TestExec>& a, const Array2<const T, TestExec>& b,
                       const Array2<TC, TestExec>& addend, const Array2<TC, TestExec>& product) {
    detail::multiply_portably<TestExec, T, TC>(TestExec(), c.gemm(), a, b,
                                               c.addend == Addend::separate ? addend : product, product);
  }
};

template <class T>
TestMatrix<T> matrix_for(const Case& test, Op op, std::size_t rows, std::size_t columns, unsigned seed) {
  if (op == Op::transpose) std::swap(rows, columns);
  return test.padded ? TestMatrix<T>(rows, columns, 3, 2, seed) : TestMatrix<T>(rows, columns, 0, 0, seed);
}

template <class T>
double element(Op op, const TestMatrix<T>& matrix, std::size_t i, std::size_t j) {
  return op == Op::none ? matrix.at(i, j) : matrix.at(j, i);
}

template <class Multiply, class T, class TC>
void check(const Case& test) {
  SCOPED_TRACE(test.text());
  const auto a = matrix_for<T>(test, test.op_a, test.m, test.k, 1),
             b = matrix_for<T>(test, test.op_b, test.k, test.n, 2);
  auto c = matrix_for<TC>(test, Op::none, test.m, test.n, 3);
  const auto before = c;
  auto d = TestMatrix<TC>(test.m, test.n, test.padded ? 1 : 0, test.padded ? 6 : 0, 4);
  const bool separate = test.addend == Addend::separate;
  if (test.beta == 0.0f) c.fill(nan);  // must not be read
  if (separate) d.fill(nan);
  Multiply::template multiply<T, TC>(test, a.upload(), b.upload(), c.upload(),
                                     separate ? d.upload() : c.device());
  TestMatrix<TC>& result = separate ? d : c;
  result.download();
  const double rounding = std::is_same_v<TC, float> ? 0.0 : 1.001 / 256;  // once, to 8 binary digits
  for (std::size_t i = 0; i < test.m; ++i) {
    for (std::size_t j = 0; j < test.n; ++j) {
      double sum = 0.0, magnitude = 0.0;
      for (std::size_t l = 0; l < test.k; ++l) {
        const double term = element(test.op_a, a, i, l) * element(test.op_b, b, l, j);
        sum += term;
        magnitude += std::abs(term);
      }
      const double addend = test.beta == 0.0f ? 0.0 : test.beta * before.at(i, j);
      const double expected = test.alpha * sum + addend;
      const double scale = std::abs(test.alpha) * magnitude + std::abs(addend);
      // Rounding of a sum of k terms: (k + 2) units of half an ulp of the sum of magnitudes bounds it. The
      // tensor cores cut off what they add, which is twice that.
      const double tolerance = double(test.k + 2) * 1.2e-7 * scale + rounding * std::abs(expected);
      ASSERT_NEAR(result.at(i, j), expected, tolerance) << "at (" << i << ", " << j << ")";
    }
  }
  EXPECT_TRUE(result.padding_untouched());
}

template <class MultiplyType, class AB, class C>
struct Of {
  using Multiply = MultiplyType;
  using T = AB;
  using TC = C;
};
template <class Types>
class MatmulOf : public testing::Test {
 public:
  static void run(const Case& test) {
    check<typename Types::Multiply, typename Types::T, typename Types::TC>(test);
  }
};
using Products = testing::Types<Of<Library, float, float>, Of<Library, bfloat16, bfloat16>,
                                Of<Library, bfloat16, float>, Of<Portable, float, float>,
                                Of<Portable, bfloat16, bfloat16>, Of<Portable, bfloat16, float>>;
TYPED_TEST_SUITE(MatmulOf, Products);

TYPED_TEST(MatmulOf, AgreesWithDoubleForAllTransposesSizesAndStrides) {
  const std::size_t sizes[] = {1, 2, 7, 33};
  for (Op op_a : ops)
    for (Op op_b : ops)
      for (std::size_t m : sizes)
        for (std::size_t n : sizes)
          for (std::size_t k : sizes)
            for (bool padded : {false, true}) this->run({op_a, op_b, m, n, k, 1.0f, 0.0f, padded});
}

TYPED_TEST(MatmulOf, ScalesAndAccumulates) {
  for (Op op_a : ops)
    for (Op op_b : ops)
      for (std::size_t n : {std::size_t(1), std::size_t(16)})
        for (float alpha : {1.0f, -0.5f})
          for (float beta : {0.0f, 1.0f, 0.25f})
            for (bool padded : {false, true})
              for (Addend addend : {Addend::in_place, Addend::separate})
                this->run({op_a, op_b, 5, n, 11, alpha, beta, padded, addend});
}

TYPED_TEST(MatmulOf, AgreesWithDoubleAtSizesThatAreSplit) {
  for (Op op_a : ops)
    for (Op op_b : ops) {
      this->run({op_a, op_b, 257, 130, 301, 1.0f, 1.0f, true});
      this->run({op_a, op_b, 64, 128, 320, 1.0f, 1.0f, false, Addend::separate});
    }
}

template <class Types>
class LibraryOf : public MatmulOf<Types> {};
using LibraryProducts =
    testing::Types<Of<Library, float, float>, Of<Library, bfloat16, bfloat16>, Of<Library, bfloat16, float>>;
TYPED_TEST_SUITE(LibraryOf, LibraryProducts);

// The host widens bfloat16 in panels of 1024.
TYPED_TEST(LibraryOf, AgreesWithDoubleAcrossPanels) {
  for (Addend addend : {Addend::in_place, Addend::separate}) {
    this->run({Op::none, Op::transpose, 3, 5, 2100, 0.5f, 2.0f, true, addend});
    this->run({Op::transpose, Op::none, 1030, 3, 4, 0.5f, 2.0f, true, addend});
    this->run({Op::none, Op::none, 3, 1030, 1025, 1.0f, 1.0f, false, addend});
  }
}

TYPED_TEST(LibraryOf, EmptyProducts) {
  for (Op op_a : ops)
    for (Op op_b : ops)
      for (bool padded : {false, true})
        for (Addend addend : {Addend::in_place, Addend::separate})
          for (float beta : {0.0f, 0.5f}) {
            this->run({op_a, op_b, 3, 4, 0, 1.0f, beta, padded, addend});
            this->run({op_a, op_b, 3, 1, 0, 1.0f, beta, padded, addend});
            this->run({op_a, op_b, 0, 4, 5, 1.0f, beta, padded, addend});
            this->run({op_a, op_b, 3, 0, 5, 1.0f, beta, padded, addend});
            this->run({op_a, op_b, 0, 0, 0, 1.0f, beta, padded, addend});
          }
}

TYPED_TEST(LibraryOf, DoesNotReadTheFactorsWhenAlphaIsZero) {
  using T = typename TypeParam::T;
  using TC = typename TypeParam::TC;
  TestMatrix<T> a(2, 3, 0, 0, 1), b(3, 2, 0, 0, 2);
  TestMatrix<TC> c(2, 2, 0, 0, 3);
  a.fill(nan);
  b.fill(nan);
  c.fill(4.0f);
  matmul<TestExec, T, TC>(TestExec(), {.alpha = 0.0f, .beta = 0.5f}, a.upload(), b.upload(), c.upload());
  c.download();
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(c.at(i / 2, i % 2), 2.0);
}

TYPED_TEST(LibraryOf, NamesMatricesAndSizesThatDoNotFit) {
  using T = typename TypeParam::T;
  using TC = typename TypeParam::TC;
  using Factor = Array2<T, TestExec>;
  using Product = Array2<TC, TestExec>;
  const Factor a("left", 2, 3), b("right", 3, 4);
  const Product c("product", 2, 5);
  const auto product = [&](Op op_a, const Factor& factor, const Product& into) {
    return error_text([&] { matmul<TestExec, T, TC>(TestExec(), {.op_a = op_a}, a, factor, into); });
  };
  EXPECT_THAT(product(Op::none, b, c), mentions("'product' (2 x 5)", "'left' (2 x 3)", "'right' (3 x 4)"));
  EXPECT_THAT(product(Op::transpose, b, c), mentions("'left' (3 x 2)"));
  EXPECT_THAT(product(Op::none, a, c), mentions("'left' (2 x 3)"));
  const Product fits("fits", 2, 4);
  EXPECT_EQ(product(Op::none, b, fits), "no error");
  EXPECT_THAT(error_text([&] { matmul<TestExec, T, TC>(TestExec(), {.beta = 1.0f}, a, b, c, fits); }),
              mentions("'product' (2 x 5)"));
}

TYPED_TEST(LibraryOf, RepeatsWithTheSameBitsAndWithoutAllocating) {
  using T = typename TypeParam::T;
  using TC = typename TypeParam::TC;
  const TestMatrix<T> a(70, 300, 0, 4, 1), b(90, 300, 0, 4, 2);
  TestMatrix<TC> first(70, 90, 0, 0, 3), second(70, 90, 0, 0, 3);
  const auto factor_a = a.upload(), factor_b = b.upload();
  const auto multiply = [&](const Array2<TC, TestExec>& into) {
    matmul<TestExec, T, TC>(TestExec(), {.op_b = Op::transpose, .beta = 1.0f}, factor_a, factor_b, into);
  };
  const auto into_first = first.upload(), into_second = second.upload();
  multiply(into_first);
  {
    const test::Allocations allocations;
    multiply(into_second);
    EXPECT_THAT(allocations.labels(), testing::IsEmpty());
  }
  first.download();
  second.download();
  for (std::size_t i = 0; i < 70; ++i)
    for (std::size_t j = 0; j < 90; ++j) ASSERT_EQ(first.at(i, j), second.at(i, j)) << i << ", " << j;
}

// Loopback ranks are threads of one process, and all of them multiply.
TYPED_TEST(LibraryOf, CallsFromSeveralThreadsAreIndependent) {
  using T = typename TypeParam::T;
  using TC = typename TypeParam::TC;
  constexpr int callers = 4, repeats = 10;
  constexpr std::size_t size = 160;
  const TestMatrix<T> a(size, size, 0, 0, 1), b(size, size, 0, 0, 2);
  const auto factor_a = a.upload(), factor_b = b.upload();
  TestMatrix<TC> expected(size, size, 0, 0, 3);
  matmul<TestExec, T, TC>(TestExec(), {.op_b = Op::transpose}, factor_a, factor_b, expected.upload());
  expected.download();
  std::vector<int> wrong(callers, 0);
  {
    std::vector<std::jthread> threads;
    for (int caller = 0; caller < callers; ++caller) {
      threads.emplace_back([&, caller] {
        const TestExec exec = test::rank_instance();
        const float factor = static_cast<float>(1 << caller);  // a power of two: scaling is exact
        TestMatrix<TC> mine(size, size, 0, 0, 4);
        const auto into = mine.upload();
        for (int repeat = 0; repeat < repeats; ++repeat) {
          matmul<TestExec, T, TC>(exec, {.op_b = Op::transpose, .alpha = factor}, factor_a, factor_b, into);
          exec.fence();
          mine.download();
          for (std::size_t i = 0; i < size; ++i)
            for (std::size_t j = 0; j < size; ++j)
              if (std::abs(mine.at(i, j) - factor * expected.at(i, j)) >
                  factor * (1e-4 + std::abs(expected.at(i, j)) / 128))
                ++wrong[static_cast<std::size_t>(caller)];
        }
      });
    }
  }
  for (int caller = 0; caller < callers; ++caller)
    EXPECT_EQ(wrong[static_cast<std::size_t>(caller)], 0) << "thread " << caller;
}

TEST(Blas, KernelsOfOldProcessorsAreWarnedOfWhereThereIsAvx2) {
  EXPECT_THAT(blas_warning("OpenBLAS Prescott", true, true),
              testing::HasSubstr("OPENBLAS_CORETYPE=SkylakeX"));
  EXPECT_THAT(blas_warning("OpenBLAS Nehalem", true, false), testing::HasSubstr("OPENBLAS_CORETYPE=Haswell"));
  EXPECT_EQ(blas_warning("OpenBLAS Prescott", false, false), "");
  EXPECT_EQ(blas_warning("OpenBLAS Zen", true, false), "");
  EXPECT_EQ(blas_warning("libmkl_rt.so", true, true), "");
}

}  // namespace
}  // namespace annulus::linalg
