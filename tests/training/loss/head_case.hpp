#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "support/exec.hpp"
#include "training/loss/lm_head.hpp"
#include "training/loss/reference.hpp"

/// Problems of the LM head as the arrays of LmHeadLoss, and what came out of it.
namespace annulus::test {

inline constexpr float d_weight_before = 0.75f;

/// Every fifth target is ignored. Values are rounded to T, so that both sides work on the same numbers.
template <class T>
HeadProblem random_head_problem(std::size_t tokens, std::size_t hidden_dim, std::size_t vocabulary,
                                float scale = 1.0f) {
  HeadProblem problem{.tokens = tokens,
                      .hidden_dim = hidden_dim,
                      .vocabulary = vocabulary,
                      .hidden = {},
                      .weight = {},
                      .targets = {}};
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto rounded = [](float value) { return static_cast<double>(static_cast<float>(T(value))); };
  for (std::size_t i = 0; i < tokens * hidden_dim; ++i)
    problem.hidden.push_back(rounded(scale * normal(random)));
  for (std::size_t i = 0; i < vocabulary * hidden_dim; ++i)
    problem.weight.push_back(rounded(0.5f * normal(random)));
  for (std::size_t t = 0; t < tokens; ++t)
    problem.targets.push_back(t % 5 == 2 ? loss::ignored_target
                                         : static_cast<std::int32_t>(random() % vocabulary));
  return problem;
}

/// A matrix whose rows lie in wider ones that hold NaN: (rows, columns).
template <class T>
Array2<T, TestExec> padded(const char* label, std::size_t rows, std::size_t columns, std::size_t padding) {
  const Array2<T, TestExec> wide(label, rows, columns + padding);
  Kokkos::deep_copy(wide, T(std::numeric_limits<float>::quiet_NaN()));
  const std::size_t before = padding / 2;
  return Kokkos::subview(wide, Kokkos::ALL, std::pair(before, before + columns));
}

/// Rows of `matrix`, which may be padded, one after the other.
template <class T>
std::vector<float> values_of(const Array2<T, TestExec>& matrix) {
  const Array2<std::remove_const_t<T>, TestExec> dense("dense", matrix.extent(0), matrix.extent(1));
  Kokkos::deep_copy(dense, matrix);
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), dense);
  return std::vector<float>(host.data(), host.data() + host.size());
}

template <class T>
void fill(const Array2<T, TestExec>& matrix, const std::vector<double>& values) {
  const Array2<T, TestExec> dense("dense", matrix.extent(0), matrix.extent(1));
  const auto host = Kokkos::create_mirror_view(dense);
  for (std::size_t i = 0; i < values.size(); ++i) host.data()[i] = T(static_cast<float>(values[i]));
  Kokkos::deep_copy(dense, host);
  Kokkos::deep_copy(matrix, dense);
}

/// A problem as Views, with outputs prepared so that a value left unwritten, or overwritten, shows.
template <class T>
struct HeadCase {
  Array2<T, TestExec> hidden, weight, d_hidden;
  Array2<float, TestExec> d_weight;
  Array1<std::int32_t, TestExec> targets;

  explicit HeadCase(const HeadProblem& problem, std::size_t padding = 0)
      : hidden(padded<T>("hidden", problem.tokens, problem.hidden_dim, padding)),
        weight(padded<T>("weight", problem.vocabulary, problem.hidden_dim, padding)),
        d_hidden(padded<T>("d_hidden", problem.tokens, problem.hidden_dim, padding)),
        d_weight(padded<float>("d_weight", problem.vocabulary, problem.hidden_dim, padding)),
        targets("targets", problem.tokens) {
    fill(hidden, problem.hidden);
    fill(weight, problem.weight);
    Kokkos::deep_copy(d_hidden, T(std::numeric_limits<float>::quiet_NaN()));
    Kokkos::deep_copy(d_weight, d_weight_before);
    set_targets(problem.targets);
  }

  void set_targets(const std::vector<std::int32_t>& values) const {
    const auto host = Kokkos::create_mirror_view(targets);
    std::copy(values.begin(), values.end(), host.data());
    Kokkos::deep_copy(targets, host);
  }

  void enqueue(loss::LmHeadLoss<TestExec, T>& head, float grad_scale = 1.0f,
               const TestExec& exec = TestExec()) const {
    head.forward_backward(exec, hidden, weight, targets,
                          {.scale = grad_scale, .d_hidden = d_hidden, .d_weight = d_weight});
  }
  loss::LossSum run(loss::LmHeadLoss<TestExec, T>& head, float grad_scale = 1.0f,
                    const TestExec& exec = TestExec()) const {
    enqueue(head, grad_scale, exec);
    return head.take(exec);
  }
  loss::LossSum evaluate(loss::LmHeadLoss<TestExec, T>& head) const {
    head.forward(TestExec(), hidden, weight, targets);
    return head.take(TestExec());
  }
  std::vector<int> greedy(loss::LmHeadLoss<TestExec, T>& head) const {
    const Array1<std::uint8_t, TestExec> chosen("greedy", targets.extent(0));
    Kokkos::deep_copy(chosen, std::uint8_t{7});
    head.forward(TestExec(), hidden, weight, targets, {}, chosen);
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), chosen);
    return std::vector<int>(host.data(), host.data() + host.size());
  }
};

/// Compares with scale · expected + offset. fp32 takes `tolerance`; gradients of logits in 16 bits, and
/// results in them, are good for some units of 2⁻⁸ of the largest value.
template <class T, class Actual>
void expect_near(const Actual& actual, const std::vector<double>& expected, double scale, double offset,
                 double tolerance) {
  const std::vector<float> values = values_of(actual);
  ASSERT_EQ(values.size(), expected.size());
  if constexpr (!std::is_same_v<T, float>) {
    double largest = 0.0;
    for (double value : expected) largest = std::max(largest, std::abs(scale * value));
    tolerance += largest / 128;
  }
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(values[i], scale * expected[i] + offset, tolerance) << actual.label() << " at " << i;
}

}  // namespace annulus::test
