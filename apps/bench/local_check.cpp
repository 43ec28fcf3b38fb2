#include "bench/local_check.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/base/error.hpp>

#include "bench/verify.hpp"

namespace annulus::bench {
namespace {

using plan::Tensor;

constexpr std::int64_t small_tokens = 384;
constexpr std::int64_t samples_of_a_head = 12;

/// The terms of a mask that have a meaning for any length.
std::string mask_of_any_length(std::string_view text) {
  std::string kept;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('+', begin), text.size());
    const std::string_view term = text.substr(begin, end - begin);
    if (!term.starts_with("documents") && !term.starts_with("blocks")) {
      kept += (kept.empty() ? "" : "+") + std::string(term);
    }
    begin = end + 1;
  }
  return kept.empty() ? "causal" : kept;
}

/// The first row, the last and others in between, one in each of equal stretches but not at equal distances.
std::vector<std::int64_t> sampled_rows(std::int64_t rows) {
  std::vector<std::int64_t> sample{0, rows - 1};
  for (std::int64_t i = 0; i < samples_of_a_head; ++i) {
    const std::int64_t begin = rows * i / samples_of_a_head, end = rows * (i + 1) / samples_of_a_head;
    if (end > begin) sample.push_back(begin + (i * 7919 + 13) % (end - begin));
  }
  std::sort(sample.begin(), sample.end());
  sample.erase(std::unique(sample.begin(), sample.end()), sample.end());
  return sample;
}

/// ‖x − expected‖ / ‖expected‖, summed up as rows come in. Against almost nothing (gradients of rows with one
/// key are zero), a root mean square of 10⁻³ counts.
struct ErrorNorm {
  double error = 0, norm = 0, count = 0;
  void add(double x, double expected) {
    if (x == expected && std::isinf(expected)) return;  // lse of a row without keys
    const double difference = x - expected;
    error += std::isfinite(difference) ? difference * difference : std::numeric_limits<double>::infinity();
    norm += expected * expected;
    count += 1;
  }
  void add(const ErrorNorm& other) {
    error += other.error;
    norm += other.norm;
    count += other.count;
  }
  double relative() const { return error == 0 ? 0.0 : std::sqrt(error / std::max(norm, 1e-6 * count)); }
};
enum Compared { of_out, of_lse, of_dq, of_dk, of_dv, compared_count };
using ErrorNorms = std::array<ErrorNorm, compared_count>;
constexpr std::array<const char*, compared_count> names = {"out", "lse", "dq", "dk", "dv"};

/// Rows of one sequence and head, in double precision from their definitions.
template <class T>
class RowCheck {
 public:
  RowCheck(const LocalPasses<T>& passes, int batch, int head)
      : p_(passes),
        batch_(batch),
        head_(head),
        kv_head_(head / passes.problem().group()),
        head_dim_(passes.problem().head_dim),
        rule_(passes.problem().mask.rule()) {}

  /// out, lse and dq of query i.
  void query(std::int64_t i, ErrorNorms& errors) const {
    std::vector<std::int64_t> keys;
    std::vector<double> weights;
    double highest = -std::numeric_limits<double>::infinity(), sum = 0;
    const KeyRange range = rule_.keys(i);
    for (std::int64_t j = range.begin; j < range.end; j += range.stride) {
      if (!rule_.block_allows(i, j)) continue;
      keys.push_back(j);
      weights.push_back(score(i, j, head_));
      highest = std::max(highest, weights.back());
    }
    for (double& weight : weights) sum += weight = std::exp(weight - highest);
    std::vector<double> out(head_dim_, 0.0), dq(head_dim_, 0.0);
    for (std::size_t n = 0; n < keys.size(); ++n) {
      weights[n] /= sum;
      for (int c = 0; c < head_dim_; ++c) out[c] += weights[n] * p_.v()(batch_, kv_head_, keys[n], c);
    }
    double d = 0;  // rowsum(dO∘O)
    for (int c = 0; c < head_dim_; ++c) d += out[c] * p_.d_out()(batch_, head_, i, c);
    for (std::size_t n = 0; n < keys.size(); ++n) {
      const double d_score = weights[n] * (d_probability(i, keys[n], head_) - d) * p_.scale();
      for (int c = 0; c < head_dim_; ++c) dq[c] += d_score * p_.k()(batch_, kv_head_, keys[n], c);
    }
    errors[of_lse].add(p_.lse()(batch_, head_, i), highest + std::log(sum));
    for (int c = 0; c < head_dim_; ++c) {
      errors[of_out].add(p_.out()(batch_, head_, i, c), out[c]);
      errors[of_dq].add(p_.dq()(batch_, head_, i, c), dq[c]);
    }
  }

  /// dk and dv of key j; the head is the first of its group.
  void key(std::int64_t j, ErrorNorms& errors) const {
    std::vector<double> dk(head_dim_, 0.0), dv(head_dim_, 0.0);
    for (int head = head_; head < head_ + p_.problem().group(); ++head) {
      for (std::int64_t i = 0; i < p_.positions().count; ++i) {
        if (!rule_.allows(i, j)) continue;
        const double probability = std::exp(score(i, j, head) - p_.lse()(batch_, head, i));
        const double d_score =
            probability * (d_probability(i, j, head) - p_.d()(batch_, head, i)) * p_.scale();
        for (int c = 0; c < head_dim_; ++c) {
          dv[c] += probability * p_.d_out()(batch_, head, i, c);
          dk[c] += d_score * p_.q()(batch_, head, i, c);
        }
      }
    }
    for (int c = 0; c < head_dim_; ++c) {
      errors[of_dk].add(p_.dk()(batch_, kv_head_, j, c), dk[c]);
      errors[of_dv].add(p_.dv()(batch_, kv_head_, j, c), dv[c]);
    }
  }

 private:
  double score(std::int64_t i, std::int64_t j, int head) const {
    double sum = 0;
    for (int c = 0; c < head_dim_; ++c) {
      sum += static_cast<double>(p_.q()(batch_, head, i, c)) *
             static_cast<double>(p_.k()(batch_, kv_head_, j, c));
    }
    return sum * p_.scale();
  }
  double d_probability(std::int64_t i, std::int64_t j, int head) const {
    double sum = 0;
    for (int c = 0; c < head_dim_; ++c) {
      sum += static_cast<double>(p_.d_out()(batch_, head, i, c)) *
             static_cast<double>(p_.v()(batch_, kv_head_, j, c));
    }
    return sum;
  }

  const LocalPasses<T>& p_;
  int batch_, head_, kv_head_, head_dim_;
  MaskRule rule_;
};

template <class T>
std::map<std::string, double> check_samples(const LocalPasses<T>& passes) {
  const plan::Problem& problem = passes.problem();
  const std::vector<std::int64_t> rows = sampled_rows(passes.positions().count);
  const auto count = static_cast<std::int64_t>(rows.size()) * problem.batch * problem.heads;
  std::vector<ErrorNorms> errors(static_cast<std::size_t>(count));
  Kokkos::parallel_for("annulus::bench::check_rows",
                       Kokkos::RangePolicy<HostExec, Kokkos::Schedule<Kokkos::Dynamic>>(HostExec(), 0, count),
                       [&](std::int64_t n) {
                         const auto row = rows[static_cast<std::size_t>(n) % rows.size()];
                         const auto sequence = static_cast<int>(n / static_cast<std::int64_t>(rows.size()));
                         const int head = sequence % problem.heads;
                         const RowCheck<T> check(passes, sequence / problem.heads, head);
                         check.query(row, errors[static_cast<std::size_t>(n)]);
                         if (head % problem.group() == 0) check.key(row, errors[static_cast<std::size_t>(n)]);
                       });
  HostExec().fence("annulus::bench: the samples are compared");
  std::map<std::string, double> relative;
  for (int tensor = 0; tensor < compared_count; ++tensor) {
    ErrorNorm all;
    for (const ErrorNorms& some : errors) all.add(some[tensor]);
    relative[names[tensor]] = all.relative();
  }
  return relative;
}

template <class T>
std::map<std::string, double> check_small(const plan::Problem& problem, std::uint64_t seed,
                                          attention::Kernel kernel) {
  plan::Problem small = problem;
  small.mask = Mask::parse(mask_of_any_length(problem.mask.to_string()),
                           std::min(small_tokens, problem.mask.tokens()));
  LocalPasses<T> passes(small, seed, kernel);
  passes.forward();
  passes.backward();
  const auto global = [&](const auto& view, int heads, int width) {
    return GlobalTensor{small.batch, heads, small.mask.tokens(), width, to_floats(view)};
  };
  const int d = small.head_dim;
  return compare(small, passes.scale(), tolerance(DType::f32),
                 {{Tensor::q, global(passes.q(), small.heads, d)},
                  {Tensor::k, global(passes.k(), small.kv_heads, d)},
                  {Tensor::v, global(passes.v(), small.kv_heads, d)},
                  {Tensor::d_o, global(passes.d_out(), small.heads, d)},
                  {Tensor::o, global(passes.out(), small.heads, d)},
                  {Tensor::lse, global(passes.lse(), small.heads, 1)},
                  {Tensor::dq, global(passes.dq(), small.heads, d)},
                  {Tensor::dk, global(passes.dk(), small.kv_heads, d)},
                  {Tensor::dv, global(passes.dv(), small.kv_heads, d)}})
      .errors;
}

/// Kernels alone, without ranks between them, widen what they read and sum in fp32: the tolerance of fp32
/// serves every storage type.
double limit() {
  return tolerance(DType::f32);
}

void require_small(const std::map<std::string, double>& errors, const char* what) {
  for (const auto& [name, error] : errors) {
    require(error <= limit(),
            "--local: {} of {} differs from double precision by a relative error of {:.2e}, more than "
            "{:.0e}: the kernel is "
            "wrong, so it is not timed; try --kernel portable and report this",
            name, what, error, limit());
  }
}

}  // namespace

template <class T>
nlohmann::json check_local(LocalPasses<T>& passes, std::uint64_t seed, attention::Kernel kernel) {
  const auto small = check_small<T>(passes.problem(), seed, kernel);
  require_small(small, "a short sequence");
  passes.forward();
  passes.backward();
  const auto samples = check_samples(passes);
  require_small(samples, "sampled rows");
  return {
      {"tolerance", limit()},
      {"short_sequence",
       {{"tokens", std::min(small_tokens, passes.problem().mask.tokens())}, {"errors", small}}},
      {"sampled_rows", {{"of_a_head", sampled_rows(passes.positions().count).size()}, {"errors", samples}}}};
}

template nlohmann::json check_local(LocalPasses<float>&, std::uint64_t, attention::Kernel);
template nlohmann::json check_local(LocalPasses<bfloat16>&, std::uint64_t, attention::Kernel);
template nlohmann::json check_local(LocalPasses<float16>&, std::uint64_t, attention::Kernel);

}  // namespace annulus::bench
