#include <algorithm>
#include <annulus/base/error.hpp>
#include <annulus/core/region.hpp>
#include <annulus/linalg/matmul.hpp>
#include <annulus/loss/lm_head.hpp>
#include <limits>
#include <utility>

namespace annulus::loss {
namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

// Logits that a product writes and the row kernels read back should stay in cache, yet the product should be
// wide.
constexpr std::int64_t default_vocabulary_tile = 4096;
// Each sequence tile passes over the weight and its gradient once; more tokens than this no longer save much.
constexpr std::int64_t largest_sequence_tile = 1024;

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// One team a row. Its size is fixed, so that sums are formed in the same order on any number of threads.
template <class Exec>
Kokkos::TeamPolicy<Exec> team_per_row(const Exec& exec, std::int64_t rows) {
  constexpr bool host =
      Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename Exec::memory_space>::accessible;
  return {exec, static_cast<int>(rows), host ? 1 : 128};
}

// exp(from - to), where equal infinities give 1: a sum relative to -inf is 0 and stays so.
KOKKOS_FUNCTION inline double rescaling(float from, float to) {
  return from == to ? 1.0 : Kokkos::exp(static_cast<double>(from) - static_cast<double>(to));
}

template <class Exec>
std::int64_t count_valid(const Exec& exec, const Array1<const std::int32_t, Exec>& targets,
                         std::int64_t vocabulary) {
  const auto tokens = static_cast<std::int64_t>(targets.extent(0));
  std::int64_t valid = 0, first_wrong = tokens;
  Kokkos::parallel_reduce(
      "annulus::loss::count_valid",
      Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(exec, 0, tokens),
      KOKKOS_LAMBDA(std::int64_t token, std::int64_t & count, std::int64_t & wrong) {
        const std::int32_t target = targets(token);
        if (target >= 0 && target < vocabulary) {
          ++count;
        } else if (target != ignored_target && token < wrong) {
          wrong = token;
        }
      },
      valid, Kokkos::Min<std::int64_t>(first_wrong));
  if (first_wrong < tokens) {
    std::int32_t target = 0;
    Kokkos::deep_copy(exec, target, Kokkos::subview(targets, first_wrong));
    exec.fence("annulus::loss::count_valid: the wrong target is read");
    fail(
        "lm_head_loss: the target of token {} is {}, but the vocabulary has {} entries: targets lie in [0, "
        "{}), or are "
        "{} where a token takes no part in the loss",
        first_wrong, target, vocabulary, vocabulary, ignored_target);
  }
  return valid;
}

// Turns a tile of logits (rows, columns), whose first column is vocabulary entry `begin`, into exp(logit -
// tile_max) and joins its sum to the running softmax of each row.
template <class Exec>
void exponentiate(const Exec& exec, const detail::LmHeadWorkspace<Exec>& work,
                  const Array2<float, Exec>& logits, const Array1<const std::int32_t, Exec>& targets,
                  std::int64_t tile, std::int64_t begin) {
  const auto tile_max = *work.tile_max;
  const auto row_max = *work.row_max, target_logit = *work.target_logit;
  const auto row_sum = *work.row_sum;
  const auto columns = static_cast<int>(logits.extent(1));
  const auto policy = team_per_row(exec, static_cast<std::int64_t>(logits.extent(0)));
  Kokkos::parallel_for(
      "annulus::loss::exponentiate", policy,
      KOKKOS_LAMBDA(const typename Kokkos::TeamPolicy<Exec>::member_type& team) {
        const int row = team.league_rank();
        float largest = minus_infinity;
        Kokkos::parallel_reduce(
            Kokkos::TeamVectorRange(team, columns),
            [&](int column, float& value) { value = Kokkos::fmax(value, logits(row, column)); },
            Kokkos::Max<float>(largest));
        Kokkos::single(Kokkos::PerTeam(team), [&] {
          const std::int64_t target = targets(row) - begin;
          if (target >= 0 && target < columns) target_logit(row) = logits(row, target);
        });
        team.team_barrier();  // the target's logit is read before it is overwritten
        const float shift = largest == minus_infinity ? 0.0f : largest;
        double sum = 0.0;
        Kokkos::parallel_reduce(
            Kokkos::TeamVectorRange(team, columns),
            [&](int column, double& partial) {
              const float value = Kokkos::exp(logits(row, column) - shift);
              logits(row, column) = value;
              partial += value;
            },
            sum);
        Kokkos::single(Kokkos::PerTeam(team), [&] {
          const float before = tile == 0 ? minus_infinity : row_max(row);
          const double sum_before = tile == 0 ? 0.0 : row_sum(row);
          const float now = Kokkos::fmax(before, largest);
          tile_max(row, tile) = largest;
          row_max(row) = now;
          row_sum(row) = sum_before * rescaling(before, now) + sum * rescaling(largest, now);
        });
      });
}

// Adds the losses of a sequence tile, log(sum of exp(logit - max)) + max - logit of the target, to loss_sum.
template <class Exec>
void add_losses(const Exec& exec, const detail::LmHeadWorkspace<Exec>& work,
                const Array1<const std::int32_t, Exec>& targets) {
  const auto row_max = *work.row_max, target_logit = *work.target_logit;
  const auto row_sum = *work.row_sum, loss_sum = *work.loss_sum;
  const auto rows = static_cast<int>(targets.extent(0));
  Kokkos::parallel_for(
      "annulus::loss::add_losses", team_per_row(exec, 1),
      KOKKOS_LAMBDA(const typename Kokkos::TeamPolicy<Exec>::member_type& team) {
        double sum = 0.0;
        Kokkos::parallel_reduce(
            Kokkos::TeamVectorRange(team, rows),
            [&](int row, double& partial) {
              if (targets(row) == ignored_target) return;
              partial += Kokkos::log(row_sum(row)) +
                         (static_cast<double>(row_max(row)) - static_cast<double>(target_logit(row)));
            },
            sum);
        Kokkos::single(Kokkos::PerTeam(team), [&] { loss_sum(0) += sum; });
      });
}

// Turns a tile of exponentials into scale · (softmax - one-hot); rows of ignored targets into 0.
template <class Exec>
void differentiate(const Exec& exec, const detail::LmHeadWorkspace<Exec>& work,
                   const Array2<float, Exec>& tile_values, const Array1<const std::int32_t, Exec>& targets,
                   std::int64_t tile, std::int64_t begin, float scale) {
  const auto tile_max = *work.tile_max;
  const auto row_max = *work.row_max;
  const auto row_sum = *work.row_sum;
  const auto columns = static_cast<int>(tile_values.extent(1));
  const auto policy = team_per_row(exec, static_cast<std::int64_t>(tile_values.extent(0)));
  Kokkos::parallel_for(
      "annulus::loss::differentiate", policy,
      KOKKOS_LAMBDA(const typename Kokkos::TeamPolicy<Exec>::member_type& team) {
        const int row = team.league_rank();
        const bool ignored = targets(row) == ignored_target;
        const auto factor =
            static_cast<float>(scale * rescaling(tile_max(row, tile), row_max(row)) / row_sum(row));
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, columns), [&](int column) {
          tile_values(row, column) = ignored ? 0.0f : factor * tile_values(row, column);
        });
        team.team_barrier();  // the softmax stands before the one-hot is subtracted
        Kokkos::single(Kokkos::PerTeam(team), [&] {
          const std::int64_t target = targets(row) - begin;
          if (!ignored && target >= 0 && target < columns) tile_values(row, target) -= scale;
        });
      });
}

template <class ViewType>
auto rows_of(const ViewType& matrix, std::int64_t begin, std::int64_t end) {
  return Kokkos::subview(matrix, std::pair(begin, end), Kokkos::ALL);
}

}  // namespace

template <class Exec>
LmHeadLoss<Exec>::LmHeadLoss(const LmHeadOptions& options) : options_(options) {
  require(
      options.sequence_tile >= 0 && options.vocabulary_tile >= 0,
      "lm_head_loss: sequence_tile {} and vocabulary_tile {} must not be negative: 0 lets the library choose",
      options.sequence_tile, options.vocabulary_tile);
  require(options.workspace_bytes > 0, "lm_head_loss: workspace_bytes is {}, but logits need some memory",
          options.workspace_bytes);
}

template <class Exec>
auto LmHeadLoss<Exec>::choose_tiles(std::int64_t tokens, std::int64_t vocabulary) const -> Tiles {
  const std::int64_t row_bytes = vocabulary * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t fitting = std::max<std::int64_t>(1, options_.workspace_bytes / row_bytes);
  const std::int64_t wanted = options_.sequence_tile > 0 ? options_.sequence_tile : largest_sequence_tile;
  const std::int64_t columns =
      options_.vocabulary_tile > 0 ? options_.vocabulary_tile : default_vocabulary_tile;
  Tiles tiles{std::min({tokens, wanted, fitting}), std::min(columns, vocabulary), 0};
  tiles.per_row = ceil_div(vocabulary, tiles.columns);
  return tiles;
}

template <class Exec>
void LmHeadLoss<Exec>::reserve(const Exec& exec, const Tiles& tiles, std::int64_t vocabulary) {
  const auto grow = [&exec]<class T>(Owned<Array2<T, Exec>>& array, const char* label, std::int64_t rows,
                                     std::int64_t columns) {
    const auto have_rows = static_cast<std::int64_t>(array.view().extent(0));
    const auto have_columns = static_cast<std::int64_t>(array.view().extent(1));
    if (have_rows >= rows && have_columns >= columns) return;
    array = {};  // what is given back first does not count twice in the peak
    array = Owned<Array2<T, Exec>>::uninitialized(exec, MemoryCategory::workspace, label, rows, columns);
  };
  const auto grow_rows = [&]<class T>(Owned<Array1<T, Exec>>& array, const char* label, std::int64_t rows) {
    if (static_cast<std::int64_t>(array.view().extent(0)) >= rows) return;
    array = {};
    array = Owned<Array1<T, Exec>>::uninitialized(exec, MemoryCategory::workspace, label, rows);
  };
  grow(work_.logits, "annulus::loss::logits", tiles.rows, vocabulary);
  grow(work_.tile_max, "annulus::loss::tile_max", tiles.rows, tiles.per_row);
  grow_rows(work_.row_max, "annulus::loss::row_max", tiles.rows);
  grow_rows(work_.row_sum, "annulus::loss::row_sum", tiles.rows);
  grow_rows(work_.target_logit, "annulus::loss::target_logit", tiles.rows);
  grow_rows(work_.loss_sum, "annulus::loss::loss_sum", 1);
}

template <class Exec>
LossSum LmHeadLoss<Exec>::run(const Exec& exec, const Matrix& hidden, const Matrix& weight,
                              const Targets& targets, const Gradients* gradients) {
  using linalg::matmul;
  using linalg::Op;
  const Region region("annulus::loss::lm_head");
  const auto tokens = static_cast<std::int64_t>(hidden.extent(0));
  const auto vocabulary = static_cast<std::int64_t>(weight.extent(0));
  require(hidden.extent(1) == weight.extent(1) && targets.extent(0) == hidden.extent(0),
          "lm_head_loss: hidden states '{}' ({} x {}) with {} targets do not fit the weight '{}' ({} x {}): "
          "they are "
          "(tokens, hidden_dim), (tokens) and (vocabulary, hidden_dim)",
          hidden.label(), tokens, hidden.extent(1), targets.extent(0), weight.label(), vocabulary,
          weight.extent(1));
  require(vocabulary > 0, "lm_head_loss: the weight '{}' has no vocabulary entries", weight.label());

  LossSum result;
  result.valid = count_valid(exec, targets, vocabulary);
  if (tokens == 0) return result;
  const Tiles tiles = choose_tiles(tokens, vocabulary);
  reserve(exec, tiles, vocabulary);
  Kokkos::deep_copy(exec, *work_.loss_sum, 0.0);

  for (std::int64_t row = 0; row < tokens; row += tiles.rows) {
    const std::int64_t row_end = std::min(row + tiles.rows, tokens);
    const Matrix hidden_tile = rows_of(hidden, row, row_end);  // (rows, hidden_dim)
    const Targets target_tile = Kokkos::subview(targets, std::pair(row, row_end));
    const auto for_each_vocabulary_tile = [&](auto&& body) {
      for (std::int64_t tile = 0; tile < tiles.per_row; ++tile) {
        const std::int64_t begin = tile * tiles.columns, end = std::min(begin + tiles.columns, vocabulary);
        const Array2<float, Exec> values =  // (rows, end - begin)
            Kokkos::subview(*work_.logits, std::pair<std::int64_t, std::int64_t>(0, row_end - row),
                            std::pair(begin, end));
        body(tile, begin, end, values);
      }
    };

    for_each_vocabulary_tile(
        [&](std::int64_t tile, std::int64_t begin, std::int64_t end, const auto& values) {
          const Matrix weight_tile = rows_of(weight, begin, end);
          matmul<Exec, float>(exec, Op::none, Op::transpose, 1.0f, hidden_tile, weight_tile, 0.0f, values);
          exponentiate<Exec>(exec, work_, values, target_tile, tile, begin);
        });
    add_losses<Exec>(exec, work_, target_tile);

    if (gradients == nullptr) continue;
    const Array2<float, Exec> d_hidden_tile = rows_of(gradients->hidden, row, row_end);
    for_each_vocabulary_tile(
        [&](std::int64_t tile, std::int64_t begin, std::int64_t end, const auto& values) {
          differentiate<Exec>(exec, work_, values, target_tile, tile, begin, gradients->scale);
          const Matrix weight_tile = rows_of(weight, begin, end);
          const Array2<float, Exec> d_weight_tile = rows_of(gradients->weight, begin, end);
          matmul<Exec, float>(exec, Op::none, Op::none, 1.0f, values, weight_tile, tile == 0 ? 0.0f : 1.0f,
                              d_hidden_tile);
          matmul<Exec, float>(exec, Op::transpose, Op::none, 1.0f, values, hidden_tile, 1.0f, d_weight_tile);
        });
  }
  Kokkos::deep_copy(exec, result.loss_sum, Kokkos::subview(*work_.loss_sum, 0));
  exec.fence("annulus::loss::lm_head: the caller reads the loss");
  return result;
}

template <class Exec>
LossSum LmHeadLoss<Exec>::forward_backward(const Exec& exec, const Matrix& hidden, const Matrix& weight,
                                           const Targets& targets, float grad_scale,
                                           const Array2<float, Exec>& d_hidden,
                                           const Array2<float, Exec>& d_weight) {
  const auto require_like = [](const auto& gradient, const auto& value) {
    require(gradient.extent(0) == value.extent(0) && gradient.extent(1) == value.extent(1),
            "lm_head_loss: the gradient '{}' ({} x {}) must have the sizes of '{}' ({} x {})",
            gradient.label(), gradient.extent(0), gradient.extent(1), value.label(), value.extent(0),
            value.extent(1));
  };
  require_like(d_hidden, hidden);
  require_like(d_weight, weight);
  const Gradients gradients{grad_scale, d_hidden, d_weight};
  return run(exec, hidden, weight, targets, &gradients);
}

template <class Exec>
LossSum LmHeadLoss<Exec>::forward(const Exec& exec, const Matrix& hidden, const Matrix& weight,
                                  const Targets& targets) {
  return run(exec, hidden, weight, targets, nullptr);
}

template <class Exec>
std::int64_t LmHeadLoss<Exec>::workspace_bytes() const {
  const auto bytes = [](const auto& array) {
    return static_cast<std::int64_t>(array.view().span() * sizeof(*array.view().data()));
  };
  return bytes(work_.logits) + bytes(work_.tile_max) + bytes(work_.row_max) + bytes(work_.row_sum) +
         bytes(work_.target_logit) + bytes(work_.loss_sum);
}

template class LmHeadLoss<HostExec>;

}  // namespace annulus::loss
