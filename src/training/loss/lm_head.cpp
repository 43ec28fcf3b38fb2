#include "training/loss/lm_head.hpp"

#include <algorithm>
#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>
#include <cmath>
#include <utility>

#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/exponential.hpp"
#include "base/kokkos/instantiate.hpp"
#include "base/kokkos/range.hpp"
#include "training/linalg/matmul.hpp"
#include "training/loss/cross_entropy.hpp"
#include "training/loss/totals.hpp"

namespace annulus::loss {
namespace {

// Each sequence tile passes over the weight and its gradient once; more tokens than this no longer save much.
constexpr std::int64_t largest_sequence_tile(bool on_host) {
  return on_host ? 1024 : 4096;
}
constexpr std::int64_t default_workspace_bytes(bool on_host) {
  return on_host ? std::int64_t{128} << 20 : std::int64_t{2} << 30;
}

// Rows of logits start at multiples of 256 bytes, those of gradients in 16 bits at as many.
constexpr std::int64_t row_alignment = 64;

template <class ViewType>
auto rows_of(const ViewType& matrix, std::int64_t begin, std::int64_t end) {
  return Kokkos::subview(matrix, std::pair(begin, end), Kokkos::ALL);
}

// A matrix of T in the memory of padded rows of fp32.
template <class T, class Exec>
Array2<T, Exec> matrix_in(const Array1<float, Exec>& memory, std::int64_t rows, std::int64_t columns,
                          std::int64_t row_stride) {
  constexpr std::int64_t per_float = sizeof(float) / sizeof(T);
  const Array2<T, Exec> padded(reinterpret_cast<T*>(memory.data()), rows, row_stride * per_float);
  return Kokkos::subview(padded, Kokkos::ALL, std::pair<std::int64_t, std::int64_t>(0, columns));
}

template <class Exec, class E>
void grow(const Exec& exec, Owned<Array1<E, Exec>>& array, const PlannedArray& size) {
  if (static_cast<std::int64_t>(array.view().extent(0)) >= size.elements) return;
  array = {};  // what is given back first does not count twice in the peak
  array = allocate<E>(exec, size);
}

}  // namespace

template <class Exec>
void cap_logits(const Exec& exec, const Array2<float, Exec>& logits, float soft_cap) {
  if (soft_cap == 0.0f) return;
  const Array1<float, Exec> all(logits.data(), logits.size());
  Kokkos::parallel_for(
      "annulus::loss::cap_logits", ElementRange<Exec>(exec, 0, static_cast<std::int64_t>(all.size())),
      KOKKOS_LAMBDA(const std::int64_t i) { all(i) = soft_cap * hyperbolic_tangent(all(i) / soft_cap); });
}

ArrayTable LmHeadWorkspace::arrays_beside_logits() const {
  if (tokens == 0) return {};
  return {{"annulus::loss::losses", MemoryCategory::workspace, tokens, sizeof(double)},
          {"annulus::loss::totals", MemoryCategory::workspace, 1, sizeof(detail::LmHeadTotals)}};
}

LmHeadWorkspace lm_head_workspace(std::int64_t tokens, std::int64_t vocabulary, bool on_host,
                                  const LmHeadOptions& options) {
  const auto chosen = [](std::int64_t option, std::int64_t otherwise) {
    return option == 0 ? otherwise : option;
  };
  const std::int64_t row_stride = round_up(vocabulary, row_alignment),
                     bytes = chosen(options.workspace_bytes, default_workspace_bytes(on_host)),
                     most = chosen(options.sequence_tile, largest_sequence_tile(on_host)),
                     fitting = std::max<std::int64_t>(
                         1, bytes / (row_stride * static_cast<std::int64_t>(sizeof(float))));
  return {.tokens = tokens, .tile = std::min({tokens, most, fitting}), .row_stride = row_stride};
}

template <class Exec, class T>
LmHeadLoss<Exec, T>::LmHeadLoss(const LmHeadOptions& options) : options_(options) {
  require(
      options.sequence_tile >= 0 && options.workspace_bytes >= 0,
      "lm_head_loss: sequence_tile {} and workspace_bytes {} must not be negative: 0 lets the library choose",
      options.sequence_tile, options.workspace_bytes);
  require(options.soft_cap >= 0 && std::isfinite(options.soft_cap),
          "lm_head_loss: the soft cap {} of logits must be a positive number, or 0 for none",
          options.soft_cap);
}

template <class Exec, class T>
Array1<float, Exec> LmHeadLoss<Exec, T>::reserve(const Exec& exec, const LmHeadWorkspace& sizes,
                                                 const Array1<float, Exec>& logits) {
  const auto given = static_cast<std::int64_t>(logits.extent(0));
  require(given == 0 || given >= sizes.logits(),
          "lm_head_loss: the memory '{}' for logits has {} elements, those of a tile are {}", logits.label(),
          given, sizes.logits());
  if (given == 0)
    grow(exec, logits_, {"annulus::loss::logits", MemoryCategory::workspace, sizes.logits(), sizeof(float)});
  const ArrayTable arrays = sizes.arrays_beside_logits();
  grow(exec, losses_, arrays[0]);
  if (!totals_.allocated()) {
    grow(exec, totals_, arrays[1]);
    Kokkos::deep_copy(exec, *totals_, detail::LmHeadTotals());
  }
  return given == 0 ? *logits_ : logits;
}

template <class Exec, class T>
void LmHeadLoss<Exec, T>::run(const Exec& exec, const Matrix& hidden, const Matrix& weight,
                              const Targets& targets, const Gradients* gradients,
                              const Array1<float, Exec>& given, const Greedy& greedy) {
  using linalg::matmul;
  using linalg::Op;
  const Region region("annulus::loss::lm_head");
  const auto tokens = static_cast<std::int64_t>(hidden.extent(0));
  const auto vocabulary = static_cast<std::int64_t>(weight.extent(0));
  require(hidden.extent(1) == weight.extent(1) && targets.extent(0) == hidden.extent(0),
          "lm_head_loss: hidden states '{}' ({} x {}) with {} targets do not fit the weight '{}' ({} x {}): "
          "they are (tokens, hidden_dim), (tokens) and (vocabulary, hidden_dim)",
          hidden.label(), tokens, hidden.extent(1), targets.extent(0), weight.label(), vocabulary,
          weight.extent(1));
  require(vocabulary > 0, "lm_head_loss: the weight '{}' has no vocabulary entries", weight.label());
  require(greedy.extent(0) == 0 || greedy.extent(0) == hidden.extent(0),
          "lm_head_loss: '{}' has room for the greedy choices of {} tokens, there are {}", greedy.label(),
          greedy.extent(0), tokens);
  if (tokens == 0) return;

  static_assert(row_alignment % detail::packet_elements<Exec> == 0);
  const LmHeadWorkspace sizes =
      lm_head_workspace(tokens, vocabulary, annulus::detail::host_memory<Exec>, options_);
  const std::int64_t row_stride = sizes.row_stride, tile = sizes.tile;
  const Array1<float, Exec> memory = reserve(exec, sizes, given);
  for (std::int64_t begin = 0; begin < tokens; begin += tile) {
    const std::int64_t end = std::min(begin + tile, tokens), rows = end - begin;
    const Matrix hidden_tile = rows_of(hidden, begin, end);  // (rows, hidden_dim)
    const auto logits = matrix_in<float, Exec>(memory, rows, vocabulary, row_stride);
    matmul<Exec, T, float>(exec, {.op_b = Op::transpose}, hidden_tile, weight, logits);
    detail::cross_entropy_rows<Exec, T>(exec,
                                        {.logits = logits.data(),
                                         .row_stride = row_stride,
                                         .rows = static_cast<int>(rows),
                                         .vocabulary = static_cast<std::int32_t>(vocabulary),
                                         .targets = targets.data() + begin,
                                         .losses = losses_.view().data() + begin,
                                         .greedy = greedy.extent(0) > 0 ? greedy.data() + begin : nullptr,
                                         .scale = gradients != nullptr ? gradients->scale : 0.0f,
                                         .soft_cap = options_.soft_cap,
                                         .gradient = gradients != nullptr});
    if (gradients == nullptr) continue;
    const Matrix d_logits = matrix_in<T, Exec>(memory, rows, vocabulary, row_stride);
    const Array2<T, Exec> d_hidden_tile = rows_of(gradients->d_hidden, begin, end);
    matmul<Exec, T, T>(exec, {}, d_logits, weight, d_hidden_tile);
    matmul<Exec, T, float>(exec, {.op_a = Op::transpose, .beta = 1.0f}, d_logits, hidden_tile,
                           gradients->d_weight);
  }
  detail::AddLosses<Exec>::launch(exec, *losses_, targets, vocabulary, *totals_);
}

template <class Exec, class T>
void LmHeadLoss<Exec, T>::forward_backward(const Exec& exec, const Matrix& hidden, const Matrix& weight,
                                           const Targets& targets, const Gradients& gradients,
                                           const Array1<float, Exec>& logits) {
  const auto require_like = [](const auto& gradient, const auto& value) {
    require(gradient.extent(0) == value.extent(0) && gradient.extent(1) == value.extent(1),
            "lm_head_loss: the gradient '{}' ({} x {}) must have the sizes of '{}' ({} x {})",
            gradient.label(), gradient.extent(0), gradient.extent(1), value.label(), value.extent(0),
            value.extent(1));
  };
  require_like(gradients.d_hidden, hidden);
  require_like(gradients.d_weight, weight);
  run(exec, hidden, weight, targets, &gradients, logits, {});
}

template <class Exec, class T>
void LmHeadLoss<Exec, T>::forward(const Exec& exec, const Matrix& hidden, const Matrix& weight,
                                  const Targets& targets, const Array1<float, Exec>& logits,
                                  const Greedy& greedy) {
  run(exec, hidden, weight, targets, nullptr, logits, greedy);
}

template <class Exec, class T>
void LmHeadLoss<Exec, T>::sum_losses(const Exec& exec, std::int64_t tokens,
                                     const Array1<double, Exec>& sums) const {
  detail::SumLosses<Exec>::launch(exec, losses(), tokens, sums);
}

template <class Exec, class T>
LossSum LmHeadLoss<Exec, T>::take(const Exec& exec) {
  if (!totals_.allocated()) return {};
  detail::LmHeadTotals totals;
  Kokkos::deep_copy(exec, totals, Kokkos::subview(*totals_, 0));
  Kokkos::deep_copy(exec, *totals_, detail::LmHeadTotals());
  exec.fence("annulus::loss::lm_head: the caller reads the loss");
  require(totals.wrong_token < 0,
          "lm_head_loss: the target of token {} is {}, but the vocabulary has {} entries: targets lie in [0, "
          "{}), or are {} where a token takes no part in the loss",
          totals.wrong_token, totals.wrong_target, totals.vocabulary, totals.vocabulary, ignored_target);
  return {totals.loss_sum, totals.valid};
}

template <class Exec, class T>
std::int64_t LmHeadLoss<Exec, T>::workspace_bytes() const {
  const auto bytes = [](const auto& array) {
    return static_cast<std::int64_t>(array.view().span() * sizeof(*array.view().data()));
  };
  return bytes(logits_) + bytes(losses_) + bytes(totals_);
}

ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_COMPILE_FUNCTION, cap_logits)
ANNULUS_FOR_TRAINING(ANNULUS_COMPILE_TYPED_CLASS, LmHeadLoss)

}  // namespace annulus::loss
