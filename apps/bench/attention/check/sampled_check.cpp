#include "bench/attention/check/sampled_check.hpp"

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <annulus/core/range.hpp>

#include "bench/common/samples.hpp"

namespace annulus::bench {
namespace {

template <class Row>
double dot(const double* a, const Row& b, int width) {
  double sum = 0;
  for (int c = 0; c < width; ++c) sum += a[c] * static_cast<double>(b(c));
  return sum;
}

template <class T>
class SampledCheck {
 public:
  SampledCheck(comm::Communicator& communicator, const plan::Problem& problem, float scale,
               const HostTensors<T>& tensors)
      : communicator_(communicator),
        p_(problem),
        t_(tensors),
        rule_(problem.mask.rule()),
        scale_(scale),
        d_(problem.head_dim),
        places_(sampled_places(problem.mask.tokens())),
        heads_(std::int64_t{problem.batch} * problem.heads),
        kv_heads_(std::int64_t{problem.batch} * problem.kv_heads),
        q_(rows_of(t_.q, problem.heads)),
        highest_(heads_, count(), 1, -std::numeric_limits<double>::infinity()),
        sum_(heads_, count(), 1),
        out_(heads_, count(), d_) {}

  void forward() {
    for_each(heads_, [&](std::int64_t h, std::int64_t s) {
      double& highest = *highest_.row(h, s);
      for_keys(s, [&](std::int64_t j) { highest = std::max(highest, score(h, s, j)); });
    });
    highest_.all_reduce(communicator_, comm::ReduceOp::max);
    for_each(heads_, [&](std::int64_t h, std::int64_t s) {
      double* const out = out_.row(h, s);
      for_keys(s, [&](std::int64_t j) {
        const double weight = std::exp(score(h, s, j) - *highest_.row(h, s));
        *sum_.row(h, s) += weight;
        for (int c = 0; c < d_; ++c) out[c] += weight * kv(t_.v, h, j, c);
      });
    });
    sum_.all_reduce(communicator_);
    out_.all_reduce(communicator_);
    for_each(heads_, [&](std::int64_t h, std::int64_t s) {
      const double sum = *sum_.row(h, s);
      for (int c = 0; sum > 0 && c < d_; ++c) out_.row(h, s)[c] /= sum;
    });
    compare("out", rows_of(t_.out, p_.heads), out_, heads_, d_);
    Samples lse(heads_, count(), 1), result = lse;
    for_own([&](std::int64_t s, std::int64_t row) {
      for (std::int64_t h = 0; h < heads_; ++h) *result.row(h, s) = t_.lse(h / p_.heads, h % p_.heads, row);
    });
    result.all_reduce(communicator_);
    for_each(heads_, [&](std::int64_t h, std::int64_t s) {
      *lse.row(h, s) = *highest_.row(h, s) + std::log(*sum_.row(h, s));
    });
    compare("lse", result, lse, heads_, 1);
  }

  void backward() {
    Samples d_out = rows_of(t_.d_out, p_.heads);
    Samples dq(heads_, count(), d_), cancelling(heads_, count(), 1);
    for_each(heads_, [&](std::int64_t h, std::int64_t s) {
      const double d = dot(
          d_out.row(h, s), [&](int c) { return out_.row(h, s)[c]; }, d_);  // rowsum(dO∘O)
      for_keys(s, [&](std::int64_t j) {
        const double probability = std::exp(score(h, s, j) - *highest_.row(h, s)) / *sum_.row(h, s);
        const double d_probability = dot(
            d_out.row(h, s), [&](int c) { return kv(t_.v, h, j, c); }, d_);
        const double d_score = probability * (d_probability - d) * scale_;
        double squares = 0;
        for (int c = 0; c < d_; ++c) {
          const double k = kv(t_.k, h, j, c);
          dq.row(h, s)[c] += d_score * k;
          squares += k * k;
        }
        *cancelling.row(h, s) += probability * scale_ * scale_ * d * d * squares;
      });
    });
    dq.all_reduce(communicator_);
    cancelling.all_reduce(communicator_);
    compare("dq", rows_of(t_.dq, p_.heads), dq, heads_, d_, &cancelling);
    keys();
  }

  std::map<std::string, double> errors() const {
    std::map<std::string, double> relative;
    for (const auto& [name, norm] : errors_) relative[name] = norm.relative();
    return relative;
  }

 private:
  /// dk and dv of the keys at the sampled places.
  void keys() {
    const std::vector<double> d = own_d();
    Samples k = rows_of(t_.k, p_.kv_heads), v = rows_of(t_.v, p_.kv_heads);
    Samples dk(kv_heads_, count(), d_), dv = dk, cancelling(kv_heads_, count(), 1);
    for_each(kv_heads_, [&](std::int64_t g, std::int64_t s) {
      const int batch = static_cast<int>(g / p_.kv_heads), kv_head = static_cast<int>(g % p_.kv_heads);
      for (int head = kv_head * p_.group(); head < (kv_head + 1) * p_.group(); ++head) {
        for_queries(s, [&](std::int64_t i) {
          const double points = dot(
              k.row(g, s), [&](int c) { return t_.q(batch, head, i, c); }, d_);
          const double probability = std::exp(points * scale_ - t_.lse(batch, head, i));
          const double d_probability = dot(
              v.row(g, s), [&](int c) { return t_.d_out(batch, head, i, c); }, d_);
          const double d_row =
              d[static_cast<std::size_t>((std::int64_t{batch} * p_.heads + head) * t_.positions.count + i)];
          const double d_score = probability * (d_probability - d_row) * scale_;
          double squares = 0;
          for (int c = 0; c < d_; ++c) {
            const double q = static_cast<double>(t_.q(batch, head, i, c));
            dv.row(g, s)[c] += probability * static_cast<double>(t_.d_out(batch, head, i, c));
            dk.row(g, s)[c] += d_score * q;
            squares += q * q;
          }
          const double share = probability * scale_ * d_row;
          *cancelling.row(g, s) += share * share * squares;
        });
      }
    });
    for (Samples* const sums : {&dk, &dv, &cancelling}) sums->all_reduce(communicator_);
    compare("dk", rows_of(t_.dk, p_.kv_heads), dk, kv_heads_, d_, &cancelling);
    compare("dv", rows_of(t_.dv, p_.kv_heads), dv, kv_heads_, d_);
  }

  /// D = rowsum(dO∘O) of this rank's rows, (batch and head, rows).
  std::vector<double> own_d() const {
    const std::int64_t rows = t_.positions.count;
    std::vector<double> d(static_cast<std::size_t>(heads_ * rows));
    Kokkos::parallel_for("annulus::bench::check_d", ElementRange<HostExec>(HostExec(), 0, heads_ * rows),
                         [&](std::int64_t n) {
                           const std::int64_t h = n / rows, i = n % rows;
                           double sum = 0;
                           for (int c = 0; c < d_; ++c) {
                             sum += static_cast<double>(t_.out(h / p_.heads, h % p_.heads, i, c)) *
                                    static_cast<double>(t_.d_out(h / p_.heads, h % p_.heads, i, c));
                           }
                           d[static_cast<std::size_t>(n)] = sum;
                         });
    HostExec().fence("annulus::bench: D is summed up");
    return d;
  }

  std::int64_t count() const { return std::ssize(places_); }

  template <class F>
  void for_each(std::int64_t heads, const F& f) const {
    const std::int64_t samples = count();
    Kokkos::parallel_for(
        "annulus::bench::check_rows",
        ElementRange<HostExec, Kokkos::Schedule<Kokkos::Dynamic>>(HostExec(), 0, heads * samples),
        [&](std::int64_t n) { f(n / samples, n % samples); });
    HostExec().fence("annulus::bench: the samples are computed");
  }

  /// Samples that are rows of this rank.
  template <class F>
  void for_own(const F& f) const {
    for (std::int64_t s = 0; s < count(); ++s) {
      const std::int64_t place = places_[static_cast<std::size_t>(s)], row = t_.positions.rows_below(place);
      if (row < t_.positions.count && t_.positions(row) == place) f(s, row);
    }
  }

  /// The sampled rows of a tensor, (batch, heads of it, rows, head_dim), on every rank.
  template <class View>
  Samples rows_of(const View& tensor, int heads) const {
    Samples rows(std::int64_t{p_.batch} * heads, count(), d_);
    for_own([&](std::int64_t s, std::int64_t row) {
      for (std::int64_t h = 0; h < std::int64_t{p_.batch} * heads; ++h) {
        for (int c = 0; c < d_; ++c)
          rows.row(h, s)[c] = static_cast<double>(tensor(h / heads, h % heads, row, c));
      }
    });
    rows.all_reduce(communicator_);
    return rows;
  }

  /// This rank's keys that sample s attends to.
  template <class F>
  void for_keys(std::int64_t s, const F& f) const {
    const std::int64_t place = places_[static_cast<std::size_t>(s)];
    for_rows(rule_.reach(place, rule_.left, rule_.right), [&](std::int64_t j) {
      if (rule_.allows(place, t_.positions(j))) f(j);
    });
  }

  /// This rank's queries that attend to the key at sample s.
  template <class F>
  void for_queries(std::int64_t s, const F& f) const {
    const std::int64_t place = places_[static_cast<std::size_t>(s)];
    for_rows(rule_.reach(place, rule_.right, rule_.left), [&](std::int64_t i) {
      if (rule_.allows(t_.positions(i), place)) f(i);
    });
  }

  template <class F>
  void for_rows(const KeyRange& range, const F& f) const {
    const std::int64_t end = t_.positions.rows_below(range.end);
    for (std::int64_t row = t_.positions.rows_below(range.begin); row < end; ++row) f(row);
  }

  /// An element of k or v for query head h of all sequences.
  template <class View>
  double kv(const View& tensor, std::int64_t h, std::int64_t j, int c) const {
    return static_cast<double>(tensor(h / p_.heads, h % p_.heads / p_.group(), j, c));
  }

  double score(std::int64_t h, std::int64_t s, std::int64_t j) {
    return dot(
               q_.row(h, s), [&](int c) { return kv(t_.k, h, j, c); }, d_) *
           scale_;
  }

  void compare(const char* name, Samples result, Samples& expected, std::int64_t heads, int width,
               Samples* least = nullptr) {
    ErrorNorm& norm = errors_[name];
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
  MaskRule rule_;
  double scale_;
  int d_;
  std::vector<std::int64_t> places_;
  std::int64_t heads_, kv_heads_;  // of all sequences
  Samples q_, highest_, sum_, out_;
  std::map<std::string, ErrorNorm> errors_;
};

}  // namespace

std::int64_t sampled_rows_of(std::int64_t tokens) {
  return std::ssize(sampled_places(tokens));
}

template <class T>
std::map<std::string, double> sampled_errors(comm::Communicator& communicator, const plan::Problem& problem,
                                             float scale, const HostTensors<T>& tensors, bool backward) {
  SampledCheck<T> check(communicator, problem, scale, tensors);
  check.forward();
  if (backward) check.backward();
  return check.errors();
}

#define ANNULUS_INSTANTIATE(T)                                                                            \
  template std::map<std::string, double> sampled_errors(comm::Communicator&, const plan::Problem&, float, \
                                                        const HostTensors<T>&, bool);
ANNULUS_INSTANTIATE(float)
ANNULUS_INSTANTIATE(bfloat16)
ANNULUS_INSTANTIATE(float16)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::bench
