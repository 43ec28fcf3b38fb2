#include <annulus/attention/sequence/layout.hpp>

#include "bench/kernels/case.hpp"
#include "bench/kernels/data.hpp"
#include "training/model/ops.hpp"

namespace annulus::bench {

namespace {

using Exec = Kokkos::DefaultExecutionSpace;
constexpr float theta = 500000.0f;
enum : std::uint32_t { of_qkv = 21, of_dq, of_dk, of_dv, of_heads, of_joined };

/// Where a column of the joint rows of queries, keys and values stands in arrays by head.
struct HeadColumn {
  HeadColumn(const KernelSizes& s, std::int64_t c)
      : head(c / s.head_dim),
        i(c % s.head_dim),
        half(s.head_dim / 2),
        of_q(head < s.heads),
        of_v(head >= s.heads + s.kv_heads),
        own_head(of_q   ? head
                 : of_v ? head - s.heads - s.kv_heads
                        : head - s.heads),
        frequency(model::rope_frequencies(theta, s.head_dim, {}).inverse[i % half]) {}

  /// Cosine and sine of the rotation at a position, as the table holds them; values are not rotated.
  double angle(std::int64_t position) const { return of_v ? 0 : double(position) * frequency; }
  /// The other column of the pair, and the sign of the sine on it.
  std::int64_t partner() const { return i < half ? i + half : i - half; }
  double sign() const { return i < half ? -1 : 1; }

  std::int64_t head, i, half;
  bool of_q, of_v;
  std::int64_t own_head;
  double frequency;  // radians a position
};

template <class T>
class Rope {
 public:
  explicit Rope(const KernelSizes& s)
      : s_(s),
        width_(std::int64_t{s.heads + 2 * s.kv_heads} * s.head_dim),
        cosine_(result<Array2<float, Exec>>(exec_, "cosine", s.tokens, s.head_dim / 2)),
        sine_(result<Array2<float, Exec>>(exec_, "sine", s.tokens, s.head_dim / 2)) {
    model::rope_table<Exec>(exec_, Layout().shard(s.tokens, 1, 0),
                            model::rope_frequencies(theta, s.head_dim, {}), cosine_, sine_);
  }

  ReadyKernel forward() {
    const auto qkv = operand<Array2<T, Exec>>(exec_, of_qkv, "qkv", s_.tokens, width_);
    const auto q = by_head<T>("q", s_.heads), k = by_head<T>("k", s_.kv_heads),
               v = by_head<T>("v", s_.kv_heads);
    return {.bytes = 2.0 * sizeof(T) * elements() + table_bytes(),
            .run =
                [*this, qkv, q, k, v] {
                  model::split_qkv_rope<Exec, T>(exec_, qkv, {cosine_, sine_}, {q, k, v});
                },
            .error =
                [*this, q, k, v] {
                  RowDifference all;
                  std::vector<double> actual;  // of a head
                  for (const std::int64_t t : sampled_indices(s_.tokens))
                    for (std::int64_t c = 0; c < width_; ++c) {
                      const HeadColumn at(s_, c);
                      if (at.i == 0)
                        actual = numbers(at.of_q ? q : at.of_v ? v : k, index(at, t), s_.head_dim);
                      const auto in = [&](std::int64_t i) {
                        return stored<T>(of_qkv, t * width_ + at.head * s_.head_dim + i);
                      };
                      const double angle = at.angle(t);
                      const double expected =
                          in(at.i) * std::cos(angle) + at.sign() * in(at.partner()) * std::sin(angle);
                      all.add(actual[at.i], expected);
                    }
                  return all.relative();
                }};
  }

  ReadyKernel backward() {
    const auto dq = gradient(of_dq, s_.heads), dk = gradient(of_dk, s_.kv_heads),
               dv = gradient(of_dv, s_.kv_heads);
    const auto d_qkv = result<Array2<T, Exec>>(exec_, "d_qkv", s_.tokens, width_);
    return {.bytes = (4.0 + sizeof(T)) * elements() + table_bytes(),
            .run =
                [*this, dq, dk, dv, d_qkv] {
                  model::split_qkv_rope_backward<Exec, T>(exec_, {dq, dk, dv}, {cosine_, sine_}, d_qkv);
                },
            .error = difference(d_qkv, s_.tokens, width_, [*this](std::int64_t t, std::int64_t c) {
              const HeadColumn at(s_, c);
              const auto in = [&](std::int64_t i) {
                return stored<float>(at.of_q ? of_dq : at.of_v ? of_dv : of_dk, index(at, t) - at.i + i);
              };
              const double angle = at.angle(t);
              return in(at.i) * std::cos(angle) - at.sign() * in(at.partner()) * std::sin(angle);
            })};
  }

 private:
  double elements() const { return double(s_.tokens) * double(width_); }
  double table_bytes() const { return 4.0 * double(s_.tokens) * s_.head_dim; }
  std::int64_t index(const HeadColumn& at, std::int64_t t) const {
    return (at.own_head * s_.tokens + t) * s_.head_dim + at.i;
  }
  template <class Element>
  Array4<Element, Exec> by_head(const char* name, int heads) const {
    return result<Array4<Element, Exec>>(exec_, name, 1, heads, s_.tokens, s_.head_dim);
  }
  Array4<float, Exec> gradient(std::uint32_t seed, int heads) const {
    return operand<Array4<float, Exec>>(exec_, seed, "gradient", 1, heads, s_.tokens, s_.head_dim);
  }

  Exec exec_;
  KernelSizes s_;
  std::int64_t width_;  // of a row of queries, keys and values
  Array2<float, Exec> cosine_, sine_;
};

/// The element of an array by head that column c of row t of the joint array is.
std::int64_t in_heads(const KernelSizes& s, std::int64_t t, std::int64_t c) {
  return (c / s.head_dim * s.tokens + t) * s.head_dim + c % s.head_dim;
}

template <class T>
ReadyKernel join_heads(const KernelSizes& s) {
  const Exec exec;
  const std::int64_t width = std::int64_t{s.heads} * s.head_dim;
  const auto in = operand<Array4<float, Exec>>(exec, of_heads, "heads", 1, s.heads, s.tokens, s.head_dim);
  const auto out = result<Array2<T, Exec>>(exec, "joined", s.tokens, width);
  return {.bytes = (4.0 + sizeof(T)) * double(s.tokens) * double(width),
          .run = [=] { model::join_heads<Exec, T>(exec, in, out); },
          .error = difference(out, s.tokens, width, [=](std::int64_t t, std::int64_t c) {
            return stored<float>(of_heads, in_heads(s, t, c));
          })};
}

template <class T>
ReadyKernel split_heads(const KernelSizes& s) {
  const Exec exec;
  const std::int64_t width = std::int64_t{s.heads} * s.head_dim;
  const auto in = operand<Array2<T, Exec>>(exec, of_joined, "joined", s.tokens, width);
  const auto out = result<Array4<T, Exec>>(exec, "heads", 1, s.heads, s.tokens, s.head_dim);
  return {.bytes = 2.0 * sizeof(T) * double(s.tokens) * double(width),
          .run = [=] { model::split_heads<Exec, T>(exec, in, out); },
          .error = difference(out, s.heads * s.tokens, s.head_dim, [=](std::int64_t row, std::int64_t i) {
            const std::int64_t head = row / s.tokens, t = row % s.tokens;
            return stored<T>(of_joined, t * width + head * s.head_dim + i);
          })};
}

}  // namespace

template <class T>
std::vector<KernelCase> head_kernels(const KernelSizes& s) {
  return {{"split_qkv_rope", [s] { return Rope<T>(s).forward(); }},
          {"split_qkv_rope_backward", [s] { return Rope<T>(s).backward(); }},
          {"join_heads", [s] { return join_heads<T>(s); }},
          {"split_heads", [s] { return split_heads<T>(s); }}};
}
template std::vector<KernelCase> head_kernels<float>(const KernelSizes&);
template std::vector<KernelCase> head_kernels<bfloat16>(const KernelSizes&);

}  // namespace annulus::bench
