#include "bench/attention/check/check.hpp"

#include <fmt/format.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include <annulus/base/error.hpp>

#include "base/kokkos/range.hpp"
#include "bench/common/samples.hpp"

namespace annulus::bench {

double tolerance(DType type, double soft_cap) {
  // The reference starts from the stored values, so rounding them is no error. What is left are the sums,
  // which every kernel keeps in fp32; kernels of the host multiply in fp32, too, whatever the storage type.
  constexpr double sums = 1e-5;
  if (std::is_same_v<Kokkos::DefaultExecutionSpace, HostExec>) return sums;
  // What a kernel of a device may do is round P and dS to the storage type before it multiplies: half a unit
  // in the last place of it, 2⁻⁹ and 2⁻¹², twice.
  if (size_of(type) != 2) return sums;
  // And take the tangent of capped scores to 2⁻¹¹ of it: of scores, which are of size 1.
  const double tangent = soft_cap > 0 ? 1e-3 : 0;
  return (type == DType::bf16 ? 4e-3 : 5e-4) + tangent;
}

std::string tolerance_text() {
  return fmt::format(
      "Fails (exit status 1) beyond a relative error, ‖x − reference‖ / ‖reference‖ of out, LSE, dQ, dK, dV "
      "or d_sinks, of {:.0e} for f32, {:.0e} for bf16, {:.0e} for f16",
      tolerance(DType::f32), tolerance(DType::bf16), tolerance(DType::f16));
}

bool CheckResult::passed() const {
  return std::ranges::all_of(errors, [&](const auto& entry) { return entry.second <= tolerance; });
}

namespace {

/// Products that a check of every row computes: one core does about 10⁹ multiplications and additions a
/// second, 7 a product and head dimension.
double products(const plan::Problem& problem) {
  const PositionMap all = Layout().shard(problem.mask.tokens(), 1, 0);
  return static_cast<double>(problem.mask.pairs(all, all)) * problem.heads * problem.batch * problem.head_dim;
}

/// A score, and its derivative by scale · q·k.
struct Score {
  double value, derivative = 1;
};

template <class A, class B>
double dot(const A* a, const B* b, int width) {
  double sum = 0;
  for (int c = 0; c < width; ++c) sum += static_cast<double>(a[c]) * static_cast<double>(b[c]);
  return sum;
}

std::vector<std::int64_t> all_indices(std::int64_t tokens) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(tokens));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

template <class T>
class RowCheck {
 public:
  RowCheck(comm::Communicator& communicator, const plan::Problem& problem, const sparsity::HostPairs* pairs,
           const HostTensors<T>& tensors, bool every_row)
      : communicator_(communicator),
        p_(problem),
        t_(tensors),
        mask_(problem.mask.rule()),
        pairs_(pairs),
        scale_(static_cast<double>(static_cast<float>(1.0 / std::sqrt(problem.head_dim)))),
        d_(problem.head_dim),
        v_(problem.columns(plan::Tensor::v)),
        compared_(every_row ? all_indices(mask_.tokens) : sampled_indices(mask_.tokens)),
        heads_(std::int64_t{problem.batch} * problem.heads),
        kv_heads_(std::int64_t{problem.batch} * problem.kv_heads),
        q_(rows_of(t_.q, problem.heads)),
        highest_(heads_, count(), 1),
        sum_(heads_, count(), 1),
        out_(heads_, count(), v_) {}

  void forward() {
    for_each(heads_, [&](std::int64_t h, std::int64_t s) {
      double& highest = *highest_.row(h, s);
      highest = sink(h);
      for_keys(h, s, [&](std::int64_t j) { highest = std::max(highest, score(h, s, j).value); });
    });
    highest_.all_reduce(communicator_, comm::ReduceOp::max);
    for_each(heads_, [&](std::int64_t h, std::int64_t s) {
      double* const out = out_.row(h, s);
      for_keys(h, s, [&](std::int64_t j) {
        const double weight = std::exp(score(h, s, j).value - *highest_.row(h, s));
        const T* const v = kv_row(t_.v, h, j);
        *sum_.row(h, s) += weight;
        for (int c = 0; c < v_; ++c) out[c] += weight * static_cast<double>(v[c]);
      });
    });
    sum_.all_reduce(communicator_);
    out_.all_reduce(communicator_);
    Samples lse(heads_, count(), 1), result = lse;
    for_each(heads_, [&](std::int64_t h, std::int64_t s) {
      double& sum = *sum_.row(h, s);
      if (has_sinks()) sum += std::exp(sink(h) - *highest_.row(h, s));
      for (int c = 0; sum > 0 && c < v_; ++c) out_.row(h, s)[c] /= sum;
      *lse.row(h, s) = *highest_.row(h, s) + std::log(sum);
    });
    for_own([&](std::int64_t s, std::int64_t row) {
      for (std::int64_t h = 0; h < heads_; ++h) *result.row(h, s) = t_.lse(h / p_.heads, h % p_.heads, row);
    });
    result.all_reduce(communicator_);
    compare("out", rows_of(t_.out, p_.heads), out_, heads_, v_);
    compare("lse", result, lse, heads_, 1);
  }

  void backward() {
    Samples d_out = rows_of(t_.d_out, p_.heads);
    Samples dq(heads_, count(), d_), cancelling(heads_, count(), 1);
    for_each(heads_, [&](std::int64_t h, std::int64_t s) {
      const double d = dot(d_out.row(h, s), out_.row(h, s), v_);  // rowsum(dO∘O)
      for_keys(h, s, [&](std::int64_t j) {
        const T* const k = kv_row(t_.k, h, j);
        const Score of = score(h, s, j);
        const double probability = std::exp(of.value - *highest_.row(h, s)) / *sum_.row(h, s),
                     scale = scale_ * of.derivative;
        const double d_score = probability * (dot(d_out.row(h, s), kv_row(t_.v, h, j), v_) - d) * scale;
        for (int c = 0; c < d_; ++c) dq.row(h, s)[c] += d_score * static_cast<double>(k[c]);
        *cancelling.row(h, s) += probability * scale * scale * d * d * dot(k, k, d_);
      });
    });
    dq.all_reduce(communicator_);
    cancelling.all_reduce(communicator_);
    compare("dq", rows_of(t_.dq, p_.heads), dq, heads_, d_, &cancelling);
    keys();
  }

  Errors errors() const {
    Errors relative;
    for (const auto& [name, norm] : norms_) relative[name] = norm.relative();
    return relative;
  }
  std::int64_t count() const { return std::ssize(compared_); }

 private:
  /// dk and dv of the keys at the places.
  void keys() {
    Samples k = rows_of(t_.k, p_.kv_heads), v = rows_of(t_.v, p_.kv_heads);
    Samples dk(kv_heads_, count(), d_), dv(kv_heads_, count(), v_), cancelling(kv_heads_, count(), 1);
    const Samples own_d = d_of_own_rows();
    for_each(kv_heads_, [&](std::int64_t g, std::int64_t s) {
      for (std::int64_t h = g * p_.group(); h < (g + 1) * p_.group(); ++h) {
        for_queries(h, s, [&](std::int64_t i) {
          const T *const q = row_of(t_.q, p_.heads, h, i), *const d_out = row_of(t_.d_out, p_.heads, h, i);
          const Score of = capped(dot(k.row(g, s), q, d_) * scale_);
          const double d_row = *own_d.row(h, i), scale = scale_ * of.derivative,
                       probability =
                           std::exp(of.value - static_cast<double>(t_.lse(h / p_.heads, h % p_.heads, i)));
          const double d_score = probability * (dot(v.row(g, s), d_out, v_) - d_row) * scale;
          for (int c = 0; c < v_; ++c) dv.row(g, s)[c] += probability * static_cast<double>(d_out[c]);
          for (int c = 0; c < d_; ++c) dk.row(g, s)[c] += d_score * static_cast<double>(q[c]);
          const double share = probability * scale * d_row;
          *cancelling.row(g, s) += share * share * dot(q, q, d_);
        });
      }
    });
    for (Samples* const sums : {&dk, &dv, &cancelling}) sums->all_reduce(communicator_);
    compare("dk", rows_of(t_.dk, p_.kv_heads), dk, kv_heads_, d_, &cancelling);
    compare("dv", rows_of(t_.dv, p_.kv_heads), dv, kv_heads_, v_);
    if (has_sinks()) sinks(own_d);
  }

  /// d_sinks, of D of this rank's rows.
  void sinks(const Samples& own_d) {
    Samples expected(p_.heads, 1, 1), found = expected, size = expected;
    for (std::int64_t h = 0; h < heads_; ++h) {
      const std::int64_t head = h % p_.heads;
      for (std::int64_t i = 0; i < t_.positions.count; ++i) {
        const double share =
            std::exp(sink(h) - static_cast<double>(t_.lse(h / p_.heads, head, i))) * *own_d.row(h, i);
        *expected.row(head, 0) -= share;
        *size.row(head, 0) += share * share;
      }
    }
    for (std::int64_t head = 0; head < p_.heads; ++head) *found.row(head, 0) = t_.d_sinks(head);
    ErrorNorm& norm = norms_["d_sinks"];
    for (Samples* const sums : {&expected, &found, &size}) sums->all_reduce(communicator_);
    for (std::int64_t head = 0; head < p_.heads; ++head) {
      norm.add(*found.row(head, 0), *expected.row(head, 0));
      norm.least += *size.row(head, 0);
    }
  }

  /// D = rowsum(dO∘O) of this rank's rows, (batch and head, rows).
  Samples d_of_own_rows() const {
    const std::int64_t rows = t_.positions.count;
    Samples d(heads_, rows, 1);
    Kokkos::parallel_for(
        "annulus::bench::check_d", ElementRange<HostExec>(HostExec(), 0, heads_ * rows), [&](std::int64_t n) {
          const std::int64_t h = n / rows, i = n % rows;
          *d.row(h, i) = dot(row_of(t_.out, p_.heads, h, i), row_of(t_.d_out, p_.heads, h, i), v_);
        });
    HostExec().fence("annulus::bench: D is summed up");
    return d;
  }

  template <class F>
  void for_each(std::int64_t heads, const F& f) const {
    const std::int64_t samples = count();
    Kokkos::parallel_for(
        "annulus::bench::check_rows",
        ElementRange<HostExec, Kokkos::Schedule<Kokkos::Dynamic>>(HostExec(), 0, heads * samples),
        [&](std::int64_t n) { f(n / samples, n % samples); });
    HostExec().fence("annulus::bench: the samples are computed");
  }

  /// The places that are rows of this rank.
  template <class F>
  void for_own(const F& f) const {
    for (std::int64_t s = 0; s < count(); ++s) {
      const std::int64_t place = compared_[s], row = t_.positions.rows_below(place);
      if (row < t_.positions.count && t_.positions(row) == place) f(s, row);
    }
  }

  /// The rows at the places of a tensor, (batch, heads of it, rows, head_dim), on every rank.
  template <class View>
  Samples rows_of(const View& tensor, int heads) const {
    const auto columns = static_cast<int>(tensor.extent(3));
    Samples rows(std::int64_t{p_.batch} * heads, count(), columns);
    for_own([&](std::int64_t s, std::int64_t row) {
      for (std::int64_t h = 0; h < std::int64_t{p_.batch} * heads; ++h) {
        const auto* const from = row_of(tensor, heads, h, row);
        std::transform(from, from + columns, rows.row(h, s),
                       [](auto value) { return static_cast<double>(value); });
      }
    });
    rows.all_reduce(communicator_);
    return rows;
  }

  /// This rank's keys that the query at place s attends to in head h of all sequences.
  template <class F>
  void for_keys(std::int64_t h, std::int64_t s, const F& f) const {
    const std::int64_t place = compared_[s];
    for_rows(mask_.key_range(place, mask_.left, mask_.right), [&](std::int64_t j) {
      if (allows(h, place, t_.positions(j))) f(j);
    });
  }

  /// This rank's queries that attend to the key at place s in head h.
  template <class F>
  void for_queries(std::int64_t h, std::int64_t s, const F& f) const {
    const std::int64_t place = compared_[s];
    for_rows(mask_.key_range(place, mask_.right, mask_.left), [&](std::int64_t i) {
      if (allows(h, t_.positions(i), place)) f(i);
    });
  }

  bool allows(std::int64_t h, std::int64_t q, std::int64_t k) const {
    return pairs_ != nullptr ? pairs_->allows(h, q, k) : mask_.allows(q, k);
  }

  template <class F>
  void for_rows(const KeyRange& range, const F& f) const {
    const std::int64_t end = t_.positions.rows_below(range.end);
    for (std::int64_t row = t_.positions.rows_below(range.begin); row < end; ++row) f(row);
  }

  /// A row of head h of all sequences of a tensor.
  template <class View>
  static auto* row_of(const View& tensor, std::int64_t heads, std::int64_t h, std::int64_t row) {
    return &tensor(h / heads, h % heads, row, 0);
  }
  /// A row of k or v for query head h.
  const T* kv_row(const Array4<const T, HostExec>& tensor, std::int64_t h, std::int64_t row) const {
    return row_of(tensor, p_.kv_heads, h / p_.group(), row);
  }

  Score score(std::int64_t h, std::int64_t s, std::int64_t j) const {
    return capped(dot(q_.row(h, s), kv_row(t_.k, h, j), d_) * scale_);
  }
  Score capped(double score) const {
    if (t_.soft_cap == 0) return {score};
    const double t = std::tanh(score / t_.soft_cap);
    return {t_.soft_cap * t, 1 - t * t};
  }

  bool has_sinks() const { return t_.sinks.data() != nullptr; }
  /// Sink of head h of all sequences; −∞ without sinks.
  double sink(std::int64_t h) const {
    return has_sinks() ? static_cast<double>(t_.sinks(h % p_.heads))
                       : -std::numeric_limits<double>::infinity();
  }

  void compare(const char* name, const Samples& result, const Samples& expected, std::int64_t heads,
               int width, const Samples* least = nullptr) {
    ErrorNorm& norm = norms_[name];
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t s = 0; s < count(); ++s) {
        for (int c = 0; c < width; ++c) norm.add(result.row(h, s)[c], expected.row(h, s)[c]);
        if (least != nullptr) norm.least += *least->row(h, s);
      }
    }
  }

  comm::Communicator& communicator_;
  const plan::Problem& p_;
  const HostTensors<T>& t_;
  MaskRule mask_;
  const sparsity::HostPairs* pairs_;
  double scale_;
  int d_, v_;                           // columns of Q and K; of V and O
  std::vector<std::int64_t> compared_;  // of the rows that are compared
  std::int64_t heads_, kv_heads_;       // of all sequences
  Samples q_, highest_, sum_, out_;
  std::map<std::string, ErrorNorm> norms_;
};

}  // namespace

bool is_quickly_checked(const plan::Problem& problem) {
  return products(problem) <= 1e9;
}

void require_checkable(const plan::Problem& problem) {
  constexpr double limit = 1e11;  // 12 minutes of one core
  const double all = products(problem);
  const auto tokens = static_cast<double>(problem.mask.tokens());
  require(
      all <= limit,
      "--check reference: double precision would take one core about {:.0f} minutes for {} tokens: take "
      "--check sampled, which compares some rows of every head, fewer heads, or at most about {:.0f} tokens",
      all * 7e-9 / 60, problem.mask.tokens(), std::max(1.0, tokens * std::sqrt(limit / all)));
}

template <class T>
CheckResult check_rows(comm::Communicator& communicator, const plan::Problem& problem,
                       const sparsity::HostPairs* pairs, const HostTensors<T>& tensors, bool every_row,
                       bool backward) {
  RowCheck<T> check(communicator, problem, pairs, tensors, every_row);
  check.forward();
  if (backward) check.backward();
  return {tolerance(dtype_of<T>, tensors.soft_cap), check.errors(), every_row ? "reference" : "sampled",
          check.count()};
}

#define ANNULUS_INSTANTIATE(T)                                                                           \
  template CheckResult check_rows(comm::Communicator&, const plan::Problem&, const sparsity::HostPairs*, \
                                  const HostTensors<T>&, bool, bool);
ANNULUS_INSTANTIATE(float)
ANNULUS_INSTANTIATE(bfloat16)
ANNULUS_INSTANTIATE(float16)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::bench
