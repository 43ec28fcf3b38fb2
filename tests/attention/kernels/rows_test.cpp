// start_forward, merge, convert and row_dot.
#include <gtest/gtest.h>

#include <annulus/attention/kernels/local.hpp>

#include "support/attention/attention_problem.hpp"
#include "support/attention/attention_rows.hpp"
#include "support/exec.hpp"

namespace annulus::test {
namespace {

constexpr Storage storages[] = {Storage::dense, Storage::tokens_first, Storage::inside};

PositionMap rows(std::int64_t count) {
  return {.base = 0, .hi = 0, .lo = 1, .block = count, .first = 0, .count = count};
}

TEST(Rows, StartForwardWritesTheNeutralElement) {
  const TestExec exec;
  for (const Storage storage : storages) {
    const StridedArray<float, TestExec> out(exec, storage, 2, 3, 70, 24), lse(exec, storage, 2, 3, 70, 1);
    attention::start_forward(exec, out.view(), lse.rows());
    exec.fence("annulus::test: started");
    Array got_out(2, 3, 70, 24, 1.0), got_lse(2, 3, 70, 1);
    out.store(got_out, rows(70));
    lse.store(got_lse, rows(70));
    EXPECT_EQ(got_out.values, Array(2, 3, 70, 24).values);
    EXPECT_EQ(got_lse.values, Array(2, 3, 70, 1, -infinity).values);
    EXPECT_EQ(out.touched_margins() + lse.touched_margins(), 0);
  }
}

/// Merges (other_out, other_lse) into (out, lse).
void merge(Array& out, Array& lse, const Array& other_out, const Array& other_lse,
           Storage storage = Storage::dense) {
  const TestExec exec;
  const PositionMap positions = rows(out.tokens);
  const auto to_out = rows_on<float>(exec, out, positions, storage),
             to_lse = rows_on<float>(exec, lse, positions, storage);
  const auto from_out = rows_on<float>(exec, other_out, positions, storage),
             from_lse = rows_on<float>(exec, other_lse, positions, storage);
  attention::merge(exec, from_out.read(), from_lse.read_rows(), to_out.view(), to_lse.rows());
  exec.fence("annulus::test: merged");
  to_out.store(out, positions);
  to_lse.store(lse, positions);
}

TEST(Rows, MergeIsTheDefinition) {
  for (const Storage storage : storages) {
    Array out = random_array(2, 3, 70, 24, DType::f32, 1),
          lse = random_array(2, 3, 70, 1, DType::f32, 2, 3.0);
    const Array other_out = random_array(2, 3, 70, 24, DType::f32, 3),
                other_lse = random_array(2, 3, 70, 1, DType::f32, 4, 3.0);
    Array expected_out = out, expected_lse = lse;
    for (std::size_t i = 0; i < lse.values.size(); ++i) {
      const double sum = std::exp(lse.values[i]) + std::exp(other_lse.values[i]);
      expected_lse.values[i] = std::log(sum);
      for (std::size_t c = i * 24; c < (i + 1) * 24; ++c) {
        expected_out.values[c] =
            (std::exp(lse.values[i]) * out.values[c] + std::exp(other_lse.values[i]) * other_out.values[c]) /
            sum;
      }
    }
    merge(out, lse, other_out, other_lse, storage);
    EXPECT_LT(relative_error(out, expected_out), 3e-7);
    EXPECT_LT(relative_error(lse, expected_lse), 3e-7);
  }
}

TEST(Rows, MergeTakesTheSideThatHasKeys) {
  // Row 0: both sides nothing; 1: only the other; 2: only the running; 3 and 4: so far apart that one
  // vanishes.
  Array out(1, 1, 5, 8), lse(1, 1, 5, 1), other_out(1, 1, 5, 8, 3.0), other_lse(1, 1, 5, 1);
  std::fill_n(out.row(0, 0, 2), 24, 2.0);
  std::fill_n(other_out.row(0, 0, 2), 8,
              std::numeric_limits<double>::quiet_NaN());  // belongs to no key: not read
  lse.values = {-infinity, -infinity, 1.5, 1e4, -1e4};
  other_lse.values = {-infinity, 0.25, -infinity, -1e4, 1e4};
  merge(out, lse, other_out, other_lse);
  EXPECT_EQ(lse.values, (std::vector<double>{-infinity, 0.25, 1.5, 1e4, 1e4}));
  const double expected[] = {0, 3, 2, 2, 3};
  for (int i = 0; i < 5; ++i) {
    for (int c = 0; c < 8; ++c) EXPECT_EQ(out.row(0, 0, i)[c], expected[i]) << i;
  }
}

TEST(Rows, MergePassesNanOn) {
  Array out(1, 1, 2, 8, 1.0), lse(1, 1, 2, 1), other_out(1, 1, 2, 8, 1.0), other_lse(1, 1, 2, 1);
  lse.values[0] = other_lse.values[1] = std::numeric_limits<double>::quiet_NaN();
  merge(out, lse, other_out, other_lse);
  for (const double value : lse.values) EXPECT_TRUE(std::isnan(value));
}

template <class T>
void check_convert() {
  const TestExec exec;
  for (const int width : {24, 64, 10}) {
    Array values = random_array(2, 3, 70, width, DType::f32, 1);
    values.values[0] = 1.0f + 0x1p-8f;  // a tie in bf16
    values.values[1] = 1.0f + 3 * 0x1p-8f;
    values.values[2] = 1.0f + 0x1p-11f;  // in f16
    values.values[3] = -1e-7f;           // subnormal in f16
    Array expected = values;
    for (double& value : expected.values) value = static_cast<float>(T(static_cast<float>(value)));
    for (const Storage storage : storages) {
      const auto from = rows_on<float>(exec, values, rows(70), storage);
      const StridedArray<T, TestExec> to(exec, Storage::tokens_first, 2, 3, 70, width);
      attention::convert<TestExec, T>(exec, from.read(), to.view());
      exec.fence("annulus::test: converted");
      Array got(2, 3, 70, width);
      to.store(got, rows(70));
      EXPECT_EQ(got.values, expected.values) << name_of(dtype_of<T>);
    }
  }
}

TEST(Rows, ConvertRoundsToNearestEven) {
  check_convert<float>();
  check_convert<bfloat16>();
  check_convert<float16>();
}

/// row_dot of `out`, stored as Out, and the gradient, stored as T.
template <class T, class Out>
Array row_dot(const Array& out, const Array& d_out, Storage storage) {
  const TestExec exec;
  const auto from = rows_on<Out>(exec, out, rows(70), storage);
  const auto gradient = rows_on<T>(exec, d_out, rows(70), storage);
  const StridedArray<float, TestExec> d(exec, storage, 2, 3, 70, 1);
  attention::row_dot<TestExec, T, Out>(exec, from.read(), gradient.read(), d.rows());
  exec.fence("annulus::test: dotted");
  Array got(2, 3, 70, 1);
  d.store(got, rows(70));
  EXPECT_EQ(d.touched_margins(), 0);
  return got;
}

template <class T, class Out>
void check_row_dot() {
  for (const int width : {24, 40, 256}) {
    const Array out = random_array(2, 3, 70, width, dtype_of<Out>, 1),
                d_out = random_array(2, 3, 70, width, dtype_of<T>, 2);
    Array expected(2, 3, 70, 1);
    for (std::size_t i = 0; i < out.values.size(); ++i)
      expected.values[i / static_cast<std::size_t>(width)] += out.values[i] * d_out.values[i];
    for (const Storage storage : storages)
      EXPECT_LT(relative_error(row_dot<T, Out>(out, d_out, storage), expected), 5e-7)
          << name_of(dtype_of<T>) << " " << name_of(dtype_of<Out>) << " " << width;
  }
}

TEST(Rows, RowDotIsTheRowSumOfTheProductWhateverTheOutputIsStoredAs) {
  check_row_dot<float, float>();
  check_row_dot<bfloat16, float>();
  check_row_dot<float16, float>();
  check_row_dot<bfloat16, bfloat16>();
  check_row_dot<float16, float16>();
}

// A model's rows, (sequences · tokens, heads · head_dim), are such arrays, too. The bits are those of the
// values in fp32: the sum has the same order.
TEST(Rows, RowDotOfJoinedHeadsHasTheBitsOfFp32) {
  const Array out = random_array(2, 3, 70, 24, DType::bf16, 1),
              d_out = random_array(2, 3, 70, 24, DType::bf16, 2);
  EXPECT_EQ((row_dot<bfloat16, bfloat16>(out, d_out, Storage::tokens_first).values),
            (row_dot<bfloat16, float>(out, d_out, Storage::dense).values));
}

TEST(Rows, NoRowsAreNoWork) {
  const TestExec exec;
  const StridedArray<float, TestExec> out(exec, Storage::dense, 2, 0, 5, 16),
      lse(exec, Storage::dense, 2, 0, 5, 1);
  attention::start_forward(exec, out.view(), lse.rows());
  attention::merge(exec, out.read(), lse.read_rows(), out.view(), lse.rows());
  attention::row_dot<TestExec, float>(exec, out.read(), out.read(), lse.rows());
  exec.fence("annulus::test: nothing done");
}

}  // namespace
}  // namespace annulus::test
