#include "bench/gemms/lm_head_check.hpp"

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cmath>
#include <span>

#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>

#include "base/kokkos/range.hpp"
#include "bench/common/samples.hpp"

namespace annulus::bench {
namespace {

template <class Body>
void in_parallel(std::int64_t count, const Body& body) {
  Kokkos::parallel_for("annulus::bench::check_head", ElementRange<HostExec>(HostExec(), 0, count), body);
  HostExec().fence();
}

using Doubles = Array2<double, HostExec>;

template <class T>
double exact(T value) {
  return static_cast<double>(static_cast<float>(value));
}

// scale · (softmax - one-hot) of hidden · weightᵀ: (sample, vocabulary); adds the losses to loss_sum.
template <class T>
Doubles logit_gradients(const HeadSample<T>& s, double& loss_sum) {
  const std::size_t samples = s.tokens.size(), vocabulary = s.weight.extent(0);
  const Doubles values("annulus::bench::logit_gradients", samples, vocabulary);
  in_parallel(static_cast<std::int64_t>(vocabulary), [&](std::int64_t entry) {
    for (std::size_t sample = 0; sample < samples; ++sample) {
      double sum = 0.0;
      for (std::size_t i = 0; i < s.weight.extent(1); ++i)
        sum += exact(s.hidden(s.tokens[sample], i)) * exact(s.weight(entry, i));
      values(sample, entry) = sum;
    }
  });
  for (std::size_t sample = 0; sample < samples; ++sample) {
    const std::span row(&values(sample, 0), vocabulary);
    const double largest = std::ranges::max(row);
    double sum = 0.0;
    for (const double logit : row) sum += std::exp(logit - largest);
    double& of_target = row[static_cast<std::size_t>(s.targets[sample])];
    loss_sum += std::log(sum) + largest - of_target;
    for (double& logit : row) logit = s.grad_scale * std::exp(logit - largest) / sum;
    of_target -= s.grad_scale;
  }
  return values;
}

template <class T>
double d_hidden_error(const HeadSample<T>& s, const Doubles& d_logits) {
  const std::size_t samples = s.tokens.size();
  const auto columns = static_cast<std::int64_t>(s.weight.extent(1));
  const Doubles expected("annulus::bench::d_hidden", samples, columns);
  constexpr std::int64_t width = 64;  // columns of a stretch of work
  in_parallel(ceil_divide(columns, width), [&](std::int64_t stretch) {
    const std::int64_t begin = stretch * width, end = std::min(begin + width, columns);
    for (std::size_t entry = 0; entry < s.weight.extent(0); ++entry)
      for (std::size_t sample = 0; sample < samples; ++sample)
        for (std::int64_t i = begin; i < end; ++i)
          expected(sample, i) += d_logits(sample, entry) * exact(s.weight(entry, i));
  });
  ErrorNorm error;
  for (std::size_t sample = 0; sample < samples; ++sample)
    for (std::int64_t i = 0; i < columns; ++i)
      error.add(exact(s.d_hidden(s.tokens[sample], i)) / s.grad_scale, expected(sample, i) / s.grad_scale);
  return error.relative();
}

template <class T>
double d_weight_error(const HeadSample<T>& s, const Doubles& d_logits) {
  ErrorNorm error;
  for (const std::int64_t entry : s.entries)
    for (std::size_t i = 0; i < s.weight.extent(1); ++i) {
      double expected = 0.0;
      for (std::size_t sample = 0; sample < s.tokens.size(); ++sample)
        expected += d_logits(sample, entry) * exact(s.hidden(s.tokens[sample], i));
      error.add(s.d_weight(entry, i) / s.grad_scale, expected / s.grad_scale);
    }
  return error.relative();
}

}  // namespace

template <class T>
nlohmann::json check_head(const HeadSample<T>& sample) {
  double loss_sum = 0.0;
  const Doubles d_logits = logit_gradients(sample, loss_sum);
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
