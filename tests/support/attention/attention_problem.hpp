#pragma once

#include <algorithm>
#include <annulus/attention/sequence/mask.hpp>
#include <annulus/base/dtype.hpp>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "attention/kernels/reference.hpp"
#include "support/attention/head_lists.hpp"

/// Attention problems over whole sequences, their reference solutions, and how far results are from them.
/// Pure C++: attention_rows.hpp brings rows of these arrays to an execution space and back.
namespace annulus::test {

using attention::reference::Array;

/// out, lse and the gradients of a whole sequence, in global token order.
struct AttentionResult {
  Array out, lse;    // (batch, heads, tokens, v_head_dim), (batch, heads, tokens, 1)
  Array dq, dk, dv;  // like q, k, v
  Array d_sinks;     // (1, heads, 1, 1), or no heads

  /// Size of the summands of an element of dq, of dk and of d_sinks. They may cancel (to nothing, in a row of
  /// one key), and what rounding then leaves is compared with these.
  double dq_size = 0, dk_size = 0, d_sinks_size = 0;

  /// The arrays, by member.
  static constexpr auto arrays() {
    using Result = AttentionResult;
    return std::to_array(
        {&Result::out, &Result::lse, &Result::dq, &Result::dk, &Result::dv, &Result::d_sinks});
  }
};

inline bool same_bits(const AttentionResult& a, const AttentionResult& b) {
  return std::ranges::all_of(AttentionResult::arrays(), [&](auto array) {
    const std::vector<double>&x = (a.*array).values, &y = (b.*array).values;
    return x.size() == y.size() &&
           (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(double)) == 0);
  });
}

/// Calls f with a value of the C++ type of a storage type of attention.
template <class F>
auto with_storage_type(DType type, const F& f) {
  if (type == DType::bf16) return f(bfloat16());
  if (type == DType::f16) return f(float16());
  return f(float());
}

/// Each number as `type` holds it.
inline Array rounded(Array array, DType type) {
  with_storage_type(type, [&]<class T>(T) {
    for (double& value : array.values) value = static_cast<float>(T(static_cast<float>(value)));
  });
  return array;
}

/// Root of the mean square.
inline double root_mean_square(const Array& array) {
  double sum = 0;
  for (const double value : array.values) sum += value * value;
  return array.values.empty() ? 0 : std::sqrt(sum / static_cast<double>(array.values.size()));
}

/// Array of independent normal numbers of standard deviation `amplitude`, rounded to what `storage` can hold.
inline Array random_array(std::int64_t batch, std::int64_t heads, std::int64_t tokens, std::int64_t width,
                          DType storage, std::uint64_t seed, double amplitude = 1.0) {
  Array array(batch, heads, tokens, width);
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal(0.0, amplitude);
  for (double& value : array.values) value = normal(generator);
  return rounded(std::move(array), storage);
}

/// Extents of a problem.
struct AttentionShape {
  std::int64_t tokens = 0;
  int head_dim = 16;
  std::int64_t batch = 1, heads = 1, kv_heads = 1;
  int v_head_dim = 0;  ///< 0: head_dim
};

/// Inputs of attention over a whole sequence and the gradient of its output.
struct AttentionProblem {
  AttentionShape shape;
  Mask mask;
  double scale = 1.0;
  Array q, k, v, d_out;
  /// Blocks of lists that each `heads_of_list` heads have of their own beside the mask (HeadLists); 0: none.
  std::int64_t head_list_block = 0, heads_of_list = 1;
  double soft_cap = 0;                   ///< of the scores; 0: none
  Array sinks = Array(1, 0, 1, 1, 0.0);  ///< (1, heads, 1, 1), or no heads: none
  /// Lists of all sequences.
  std::int64_t head_lists() const { return shape.batch * shape.heads / heads_of_list; }

  /// Random inputs that `storage` can hold exactly, so that the reference sees what the kernels see. Scores
  /// have a standard deviation of `amplitude`².
  static AttentionProblem random(const AttentionShape& shape, const std::string& mask,
                                 DType storage = DType::f32, double amplitude = 1.0, std::uint64_t seed = 1) {
    const int columns_of_v = shape.v_head_dim == 0 ? shape.head_dim : shape.v_head_dim;
    const auto array = [&](std::int64_t heads, std::uint64_t number, double size) {
      return random_array(shape.batch, heads, shape.tokens, number < 2 ? shape.head_dim : columns_of_v,
                          storage, 4 * seed + number, size);
    };
    return {shape,
            Mask::parse(mask, shape.tokens),
            static_cast<float>(1.0 / std::sqrt(shape.head_dim)),
            array(shape.heads, 0, amplitude),
            array(shape.kv_heads, 1, amplitude),
            array(shape.kv_heads, 2, 1.0),
            array(shape.heads, 3, 1.0)};
  }

  /// Adds random sinks of standard deviation `amplitude`, which `storage` can hold.
  void add_sinks(DType storage, double amplitude = 2.0) {
    sinks = random_array(1, shape.heads, 1, 1, storage, 99, amplitude);
  }

  AttentionResult reference() const {
    if (head_list_block == 0) return reference(mask.rule());
    return reference(HostHeadLists(mask.rule(), head_list_block, head_lists(), heads_of_list).rule());
  }

  /// The reference under another mask.
  AttentionResult reference(const MaskRule& rule) const {
    const attention::reference::ScoreOptions options{soft_cap, sinks.values};
    auto forward = attention::reference::forward(q, k, v, rule, scale, options);
    auto backward = attention::reference::backward({.q = q,
                                                    .k = k,
                                                    .v = v,
                                                    .result = forward,
                                                    .d_out = d_out,
                                                    .mask = rule,
                                                    .scale = scale,
                                                    .options = options});
    const double d_score = scale * root_mean_square(d_out) * root_mean_square(v) * std::sqrt(v.width);
    // Each row gives one of the size of D, with any sign.
    const double d_sink = root_mean_square(d_out) * root_mean_square(forward.out) *
                          std::sqrt(v.width * shape.batch * shape.tokens);
    return {std::move(forward.out),        std::move(forward.lse),        std::move(backward.dq),
            std::move(backward.dk),        std::move(backward.dv),        std::move(backward.d_sinks),
            d_score * root_mean_square(k), d_score * root_mean_square(q), d_sink};
  }

  /// A result of the right shapes, full of NaN: what nobody writes is found.
  AttentionResult empty_result(double value = std::numeric_limits<double>::quiet_NaN()) const {
    const auto like = [&](const Array& array, std::int64_t width) {
      return Array(array.batch, array.heads, array.tokens, width, value);
    };
    return {like(q, v.width), like(q, 1),       like(q, q.width),
            like(k, k.width), like(v, v.width), like(sinks, sinks.width)};
  }
};

inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// How far an array is from another.
struct ArrayError {
  double norm = 0;  ///< ‖value − expected‖ / ‖expected‖: of the array as a whole, nearly free of chance
  double largest = 0;  ///< max|value − expected| / max|expected|: strict on single elements
};

/// Arrays whose elements are smaller than `size` are compared with elements of that size. Infinities must be
/// equal; both errors are infinite where they differ, where shapes differ and where a value is NaN.
inline ArrayError array_error(const Array& value, const Array& expected, double size = 0) {
  if (value.batch != expected.batch || value.heads != expected.heads || value.tokens != expected.tokens ||
      value.width != expected.width) {
    return {infinity, infinity};
  }
  double error = 0, norm = 0, largest_error = 0, largest = 0;
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    const double got = value.values[i], want = expected.values[i];
    const double difference = got == want ? 0 : got - want;  // not finite where one of two others is not
    const double size_of_want = std::isfinite(want) ? std::abs(want) : 0;
    error += difference * difference;
    norm += size_of_want * size_of_want;
    largest_error = std::max(largest_error, std::abs(difference));
    largest = std::max(largest, size_of_want);
  }
  if (error == 0) return {};
  if (!std::isfinite(error)) return {infinity, infinity};
  norm = std::max(std::sqrt(norm), size * std::sqrt(static_cast<double>(expected.values.size())));
  if (norm == 0) return {infinity, infinity};
  return {std::sqrt(error) / norm, largest_error / std::max(largest, 4 * size)};
}

/// The larger of the two errors.
inline double relative_error(const Array& value, const Array& expected, double size = 0) {
  const ArrayError error = array_error(value, expected, size);
  return std::max(error.norm, error.largest);
}

/// The relative errors, gradients of scores that cancel measured by half the size of their
/// summands.
struct AttentionErrors {
  double out, lse, dq, dk, dv, d_sinks;
  double largest() const { return std::max({out, lse, dq, dk, dv, d_sinks}); }
};
/// `error` of each result: relative_error, or a part of array_error.
template <class Error>
AttentionErrors errors_of(const AttentionResult& value, const AttentionResult& expected, const Error& error) {
  return {error(value.out, expected.out, 0.0),
          error(value.lse, expected.lse, 0.0),
          error(value.dq, expected.dq, expected.dq_size / 2),
          error(value.dk, expected.dk, expected.dk_size / 2),
          error(value.dv, expected.dv, 0.0),
          error(value.d_sinks, expected.d_sinks, expected.d_sinks_size / 2)};
}
inline AttentionErrors errors_of(const AttentionResult& value, const AttentionResult& expected) {
  return errors_of(value, expected, relative_error);
}

/// What is wrong with `value`, one array a line; empty when everything lies within `tolerance` of `expected`.
inline std::string differences(const AttentionResult& value, const AttentionResult& expected,
                               double tolerance) {
  const AttentionErrors errors = errors_of(value, expected);
  std::string text;
  const auto report = [&](const char* name, double error) {
    if (!(error <= tolerance)) {
      text += std::string(name) + ": error " + std::to_string(error / tolerance) + " times the tolerance\n";
    }
  };
  report("out", errors.out);
  report("lse", errors.lse);
  report("dq", errors.dq);
  report("dk", errors.dk);
  report("dv", errors.dv);
  report("d_sinks", errors.d_sinks);
  return text;
}

/// What kernels that sum in fp32 reach: rounding of scores of size s is s · 2⁻²⁴ · √head_dim or so, and
/// enters the probabilities as it is. For scores of size 1; proportionally more for larger ones.
inline constexpr double fp32_tolerance = 3e-6;

}  // namespace annulus::test
