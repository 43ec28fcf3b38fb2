#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

/// Softmax cross-entropy of a linear head in double precision, written for reading.
namespace annulus::test {

struct HeadProblem {
  std::size_t tokens, hidden_dim, vocabulary;
  std::vector<double> hidden, weight;  // (tokens, hidden_dim), (vocabulary, hidden_dim)
  std::vector<std::int32_t> targets;   // (tokens), -1 where ignored
  double soft_cap = 0;                 // of the logits; 0: none
};

struct HeadResult {
  double loss_sum = 0.0;
  std::int64_t valid = 0;
  std::vector<double> d_hidden, d_weight;  // gradients of loss_sum
};

/// Logits of a token before their cap, (vocabulary).
inline std::vector<double> head_logits(const HeadProblem& problem, std::size_t token) {
  std::vector<double> logits(problem.vocabulary);
  for (std::size_t v = 0; v < problem.vocabulary; ++v)
    for (std::size_t i = 0; i < problem.hidden_dim; ++i)
      logits[v] +=
          problem.hidden[token * problem.hidden_dim + i] * problem.weight[v * problem.hidden_dim + i];
  return logits;
}

inline HeadResult head_reference(const HeadProblem& problem) {
  const auto [tokens, hidden_dim, vocabulary, hidden, weight, targets, soft_cap] = problem;
  HeadResult result;
  result.d_hidden.assign(tokens * hidden_dim, 0.0);
  result.d_weight.assign(vocabulary * hidden_dim, 0.0);
  for (std::size_t t = 0; t < tokens; ++t) {
    if (targets[t] == -1) continue;
    std::vector<double> logits = head_logits(problem, t);
    if (soft_cap > 0)
      for (double& logit : logits) logit = soft_cap * std::tanh(logit / soft_cap);
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0.0;
    for (double logit : logits) sum += std::exp(logit - largest);
    const auto target = static_cast<std::size_t>(targets[t]);
    result.loss_sum += std::log(sum) + largest - logits[target];
    ++result.valid;
    for (std::size_t v = 0; v < vocabulary; ++v) {
      double d_logit = std::exp(logits[v] - largest) / sum - (v == target ? 1.0 : 0.0);
      if (soft_cap > 0) d_logit *= 1 - logits[v] / soft_cap * (logits[v] / soft_cap);
      for (std::size_t i = 0; i < hidden_dim; ++i) {
        result.d_hidden[t * hidden_dim + i] += d_logit * weight[v * hidden_dim + i];
        result.d_weight[v * hidden_dim + i] += d_logit * hidden[t * hidden_dim + i];
      }
    }
  }
  return result;
}

}  // namespace annulus::test
