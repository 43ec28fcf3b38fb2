#include "bench/gemms/lm_head_check.hpp"

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cmath>

#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/range.hpp"
#include "bench/common/samples.hpp"

namespace annulus::bench {
namespace {

template <class Body>
void in_parallel(std::int64_t count, const Body& body) {
  Kokkos::parallel_for("annulus::bench::check_head", ElementRange<HostExec>(HostExec(), 0, count), body);
  HostExec().fence();
}

// scale · (softmax - one-hot) of hidden · weightᵀ: (sample, vocabulary); adds the losses to loss_sum.
template <class T>
std::vector<double> logit_gradients(const HeadSample<T>& s, double& loss_sum) {
  const auto tokens = static_cast<std::int64_t>(s.targets.size());
  std::vector<double> values(static_cast<std::size_t>(tokens * s.vocabulary));
  in_parallel(s.vocabulary, [&](std::int64_t entry) {
    const T* const weight = s.weight.data() + entry * s.hidden_dim;
    for (std::int64_t token = 0; token < tokens; ++token) {
      const T* const hidden = s.hidden.data() + token * s.hidden_dim;
      double sum = 0.0;
      for (std::int64_t i = 0; i < s.hidden_dim; ++i)
        sum += static_cast<double>(static_cast<float>(hidden[i])) * static_cast<float>(weight[i]);
      values[token * s.vocabulary + entry] = sum;
    }
  });
  for (std::int64_t token = 0; token < tokens; ++token) {
    double* const row = values.data() + token * s.vocabulary;
    const double largest = *std::max_element(row, row + s.vocabulary);
    double sum = 0.0;
    for (std::int64_t entry = 0; entry < s.vocabulary; ++entry) sum += std::exp(row[entry] - largest);
    const std::int32_t target = s.targets[token];
    loss_sum += std::log(sum) + largest - row[target];
    for (std::int64_t entry = 0; entry < s.vocabulary; ++entry)
      row[entry] = s.grad_scale * (std::exp(row[entry] - largest) / sum - (entry == target ? 1.0 : 0.0));
  }
  return values;
}

template <class T>
double d_hidden_error(const HeadSample<T>& s, const std::vector<double>& d_logits) {
  const auto tokens = static_cast<std::int64_t>(s.targets.size());
  std::vector<double> expected(static_cast<std::size_t>(tokens * s.hidden_dim), 0.0);
  constexpr std::int64_t width = 64;  // columns of a stretch of work
  const std::int64_t stretches = ceil_divide(s.hidden_dim, width);
  in_parallel(stretches, [&](std::int64_t stretch) {
    const std::int64_t begin = stretch * width, end = std::min(begin + width, s.hidden_dim);
    for (std::int64_t entry = 0; entry < s.vocabulary; ++entry) {
      const T* const weight = s.weight.data() + entry * s.hidden_dim;
      for (std::int64_t token = 0; token < tokens; ++token) {
        const double gradient = d_logits[token * s.vocabulary + entry];
        double* const row = expected.data() + token * s.hidden_dim;
        for (std::int64_t i = begin; i < end; ++i) row[i] += gradient * static_cast<float>(weight[i]);
      }
    }
  });
  ErrorNorm error;
  for (std::size_t i = 0; i < expected.size(); ++i)
    error.add(static_cast<float>(s.d_hidden[i]) / s.grad_scale, expected[i] / s.grad_scale);
  return error.relative();
}

template <class T>
double d_weight_error(const HeadSample<T>& s, const std::vector<double>& d_logits) {
  ErrorNorm error;
  for (std::size_t e = 0; e < s.entries.size(); ++e) {
    for (std::int64_t i = 0; i < s.hidden_dim; ++i) {
      double expected = 0.0;
      for (std::size_t token = 0; token < s.targets.size(); ++token)
        expected +=
            d_logits[token * static_cast<std::size_t>(s.vocabulary) +
                     static_cast<std::size_t>(s.entries[e])] *
            static_cast<float>(
                s.hidden[token * static_cast<std::size_t>(s.hidden_dim) + static_cast<std::size_t>(i)]);
      error.add(
          s.d_weight[e * static_cast<std::size_t>(s.hidden_dim) + static_cast<std::size_t>(i)] / s.grad_scale,
          expected / s.grad_scale);
    }
  }
  return error.relative();
}

}  // namespace

template <class T>
nlohmann::json check_head(const HeadSample<T>& sample) {
  double loss_sum = 0.0;
  const std::vector<double> d_logits = logit_gradients(sample, loss_sum);
  const nlohmann::json errors = {{"tokens", sample.targets.size()},
                                 {"loss", std::abs(sample.loss_sum - loss_sum) / loss_sum},
                                 {"d_hidden", d_hidden_error(sample, d_logits)},
                                 {"d_weight", d_weight_error(sample, d_logits)}};
  // 16 bits: gradients of logits are rounded to 8 binary digits, and so is d_hidden once more.
  const double gradients = std::is_same_v<T, float> ? 2e-5 : 5e-3;
  for (const auto& [name, limit] :
       {std::pair("loss", 1e-5), std::pair("d_hidden", gradients), std::pair("d_weight", gradients)}) {
    const double error = errors[name];
    require(error <= limit,
            "lm-head: {} differs from double precision by {:.2e} of its norm, more than {:.0e}", name, error,
            limit);
  }
  return errors;
}

template nlohmann::json check_head(const HeadSample<float>&);
template nlohmann::json check_head(const HeadSample<bfloat16>&);

}  // namespace annulus::bench
