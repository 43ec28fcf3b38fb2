#include <numeric>

#include "bench/kernels/case.hpp"
#include "bench/kernels/data.hpp"
#include "training/model/ops.hpp"

namespace annulus::bench {

namespace {

using Exec = Kokkos::DefaultExecutionSpace;
using Floats = Array1<float, Exec>;
constexpr float epsilon = 1e-5f;

template <class T>
double bytes_of(double elements) {
  return elements * sizeof(T);
}

/// Seeds of the operands.
enum : std::uint32_t { of_x = 1, of_gain, of_d_out, of_d_x, of_d_gain, of_gate_up, of_table };

/// What the reference of a norm needs of a row.
template <class T>
struct NormRow {
  NormRow(std::int64_t row, int hidden) : first(row * hidden) {
    double squares = 0;
    for (int c = 0; c < hidden; ++c) squares += x(c) * x(c);
    r = 1 / std::sqrt(squares / hidden + epsilon);
    for (int c = 0; c < hidden; ++c) mean += d_out(c) * gain(c) * x(c) * r / hidden;
  }
  double x(int c) const { return stored<T>(of_x, first + c); }
  double d_out(int c) const { return stored<T>(of_d_out, first + c); }
  double gain(int c) const { return stored<T>(of_gain, c); }
  double out(int c) const { return x(c) * r * gain(c); }
  double d_x(int c) const {
    return stored<T>(of_d_x, first + c) + r * (d_out(c) * gain(c) - x(c) * r * mean);
  }

  std::int64_t first;
  double r, mean = 0;
};

template <class T>
class Norm {
 public:
  explicit Norm(const KernelSizes& s)
      : tokens_(s.tokens),
        hidden_(s.hidden),
        x_(operand<Array2<T, Exec>>(exec_, of_x, "x", s.tokens, s.hidden)),
        gain_(operand<Array1<T, Exec>>(exec_, of_gain, "gain", s.hidden)),
        inverse_rms_(result<Floats>(exec_, "inverse_rms", s.tokens)) {}

  double elements() const { return double(tokens_) * hidden_; }

  ReadyKernel forward(bool again) {
    const auto out = result<Array2<T, Exec>>(exec_, "out", tokens_, hidden_);
    if (again) norm(out);
    return {.bytes = bytes_of<T>(2 * elements() + hidden_) + bytes_of<float>(double(tokens_)),
            .run =
                [*this, out, again] {
                  if (again) {
                    model::rms_norm_recompute<Exec, T>(exec_, x_, gain_, inverse_rms_, out);
                  } else {
                    norm(out);
                  }
                },
            .error = [*this,
                      out] { return compare(out, [](const NormRow<T>& row, int c) { return row.out(c); }); }};
  }

  ReadyKernel backward() {
    const auto d_out = operand<Array2<T, Exec>>(exec_, of_d_out, "d_out", tokens_, hidden_);
    const auto d_x = operand<Array2<T, Exec>>(exec_, of_d_x, "d_x", tokens_, hidden_);
    const auto d_gain = operand<Floats>(exec_, of_d_gain, "d_gain", hidden_);
    const auto partial =
        result<Array2<float, Exec>>(exec_, "partial", model::norm_partial_rows(tokens_), hidden_);
    norm(d_x);  // leaves inverse_rms
    fill(exec_, of_d_x, d_x.data(), tokens_ * hidden_);
    return {.bytes = bytes_of<T>(4 * elements() + hidden_) + bytes_of<float>(double(tokens_) + 2.0 * hidden_),
            .run =
                [*this, d_out, d_x, d_gain, partial] {
                  model::rms_norm_backward<Exec, T>(exec_, x_, gain_, inverse_rms_, d_out,
                                                    {.d_x = d_x, .d_gain = d_gain, .partial = partial});
                },
            .error =
                [*this, d_x, d_gain] {
                  return std::max(compare(d_x, [](const NormRow<T>& row, int c) { return row.d_x(c); }),
                                  gain_error(d_gain));
                }};
  }

 private:
  void norm(const Array2<T, Exec>& out) const {
    model::rms_norm<Exec, T>(exec_, x_, gain_, epsilon, out, inverse_rms_);
  }

  template <class Expected>
  double compare(const Array2<T, Exec>& actual, const Expected& expected) const {
    RowDifference all;
    for (const std::int64_t t : sampled_indices(tokens_)) {
      const NormRow<T> row(t, hidden_);
      const auto values = numbers(actual, t * hidden_, hidden_);
      for (int c = 0; c < hidden_; ++c) all.add(values[c], expected(row, c));
    }
    return all.relative();
  }

  /// Sums over all rows, for some columns.
  double gain_error(const Floats& d_gain) const {
    RowDifference all;
    const auto r = numbers(inverse_rms_, 0, tokens_), actual = numbers(d_gain, 0, hidden_);
    for (const std::int64_t c : sampled_indices(hidden_)) {
      double sum = stored<float>(of_d_gain, c);
      for (std::int64_t t = 0; t < tokens_; ++t) {
        const std::int64_t i = t * hidden_ + c;
        sum += stored<T>(of_d_out, i) * stored<T>(of_x, i) * r[t];
      }
      all.add(actual[c], sum);
    }
    return all.relative();
  }

  Exec exec_;
  std::int64_t tokens_;
  int hidden_;
  Array2<T, Exec> x_;
  Array1<T, Exec> gain_;
  Floats inverse_rms_;
};

template <class T>
ReadyKernel swiglu(const KernelSizes& s, bool backward) {
  const Exec exec;
  const std::int64_t tokens = s.tokens, ffn = s.ffn;
  const auto gate_up = operand<Array2<T, Exec>>(exec, of_gate_up, "gate_up", tokens, 2 * ffn);
  const auto gate = [=](std::int64_t t, std::int64_t c) { return stored<T>(of_gate_up, t * 2 * ffn + c); };
  const auto sigmoid = [=](std::int64_t t, std::int64_t c) { return 1 / (1 + std::exp(-gate(t, c))); };
  const double elements = double(tokens) * double(ffn);
  if (!backward) {
    const auto out = result<Array2<T, Exec>>(exec, "out", tokens, ffn);
    return {.bytes = bytes_of<T>(3 * elements),
            .run = [=] { model::gated<Exec, T>(exec, model::Activation::silu, gate_up, out); },
            .error = difference(out, tokens, ffn, [=](std::int64_t t, std::int64_t c) {
              return gate(t, c) * sigmoid(t, c) * gate(t, ffn + c);
            })};
  }
  const auto d_out = operand<Array2<T, Exec>>(exec, of_d_out, "d_out", tokens, ffn);
  const auto d = result<Array2<T, Exec>>(exec, "d_gate_up", tokens, 2 * ffn);
  return {.bytes = bytes_of<T>(5 * elements),
          .run = [=] { model::gated_backward<Exec, T>(exec, model::Activation::silu, gate_up, d_out, d); },
          .error = difference(d, tokens, 2 * ffn, [=](std::int64_t t, std::int64_t c) {
            const std::int64_t i = c % ffn;
            const double up = stored<T>(of_d_out, t * ffn + i), s1 = sigmoid(t, i), g = gate(t, i);
            return c < ffn ? up * gate(t, ffn + i) * s1 * (1 + g * (1 - s1)) : up * g * s1;
          })};
}

/// Ids whose frequencies fall with their rank as those of words do (Zipf's law), of a vocabulary as large as
/// the rows.
class Ids {
 public:
  explicit Ids(std::int64_t tokens)
      : on_device_(result<Array1<std::int32_t, Exec>>(Exec(), "tokens", tokens)),
        order_(result<Array1<std::int32_t, Exec>>(Exec(), "order", tokens)),
        ids_(static_cast<std::size_t>(tokens)),
        rows_(ids_.size()) {
    std::vector<std::int32_t> order(ids_.size());
    for (std::size_t t = 0; t < ids_.size(); ++t) {
      const double u = 0.5 * (noise(9, static_cast<std::int64_t>(t)) + 1);
      ids_[t] = static_cast<std::int32_t>(std::pow(double(tokens), u)) - 1;
      if (rows_[ids_[t]].empty()) ++different_;
      rows_[ids_[t]].push_back(static_cast<std::int64_t>(t));
    }
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) { return ids_[a] < ids_[b]; });
    upload(ids_, on_device_);
    upload(order, order_);
  }

  const Array1<std::int32_t, Exec>& on_device() const { return on_device_; }
  const Array1<std::int32_t, Exec>& order() const { return order_; }
  std::int64_t of(std::int64_t row) const { return ids_[row]; }
  const std::vector<std::int64_t>& rows_of(std::int64_t id) const { return rows_[id]; }
  double different() const { return static_cast<double>(different_); }

 private:
  static void upload(const std::vector<std::int32_t>& from, const Array1<std::int32_t, Exec>& to) {
    Kokkos::deep_copy(to, Kokkos::View<const std::int32_t*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(
                              from.data(), from.size()));
  }
  Array1<std::int32_t, Exec> on_device_, order_;
  std::vector<std::int32_t> ids_;
  std::vector<std::vector<std::int64_t>> rows_;  // of each id
  std::int64_t different_ = 0;
};

template <class T>
ReadyKernel embed(const KernelSizes& s) {
  const Exec exec;
  const std::int64_t tokens = s.tokens, hidden = s.hidden;
  const Ids ids(tokens);
  const auto table = operand<Array2<T, Exec>>(exec, of_table, "table", tokens, hidden);
  const auto out = result<Array2<T, Exec>>(exec, "out", tokens, hidden);
  return {.bytes = bytes_of<T>((ids.different() + double(tokens)) * double(hidden)) + 4.0 * double(tokens),
          .run = [=] { model::embed<Exec, T>(exec, ids.on_device(), table, out); },
          .error = difference(out, tokens, hidden, [=](std::int64_t t, std::int64_t c) {
            return stored<T>(of_table, ids.of(t) * hidden + c);
          })};
}

template <class T>
ReadyKernel embed_backward(const KernelSizes& s) {
  const Exec exec;
  const std::int64_t tokens = s.tokens, hidden = s.hidden;
  const Ids ids(tokens);
  const auto d_out = operand<Array2<T, Exec>>(exec, of_d_out, "d_out", tokens, hidden);
  const auto d_table = operand<Array2<float, Exec>>(exec, of_table, "d_table", tokens, hidden);
  const auto partial = result<Array2<float, Exec>>(exec, "partial", model::norm_partial_rows(tokens), hidden);
  return {
      .bytes = (bytes_of<T>(double(tokens)) + 8.0 * ids.different()) * double(hidden) + 8.0 * double(tokens),
      .run =
          [=] {
            model::embed_backward<Exec, T>(exec, ids.on_device(), ids.order(), d_out, d_table, partial);
          },
      .error = difference(d_table, tokens, hidden, [=](std::int64_t id, std::int64_t c) {
        double sum = stored<float>(of_table, id * hidden + c);
        for (const std::int64_t t : ids.rows_of(id)) sum += stored<T>(of_d_out, t * hidden + c);
        return sum;
      })};
}

}  // namespace

template <class T>
std::vector<KernelCase> row_kernels(const KernelSizes& s) {
  return {{"embed", [s] { return embed<T>(s); }},
          {"embed_backward", [s] { return embed_backward<T>(s); }},
          {"rms_norm", [s] { return Norm<T>(s).forward(false); }},
          {"rms_norm_recompute", [s] { return Norm<T>(s).forward(true); }},
          {"rms_norm_backward", [s] { return Norm<T>(s).backward(); }},
          {"swiglu", [s] { return swiglu<T>(s, false); }},
          {"swiglu_backward", [s] { return swiglu<T>(s, true); }}};
}
template std::vector<KernelCase> row_kernels<float>(const KernelSizes&);
template std::vector<KernelCase> row_kernels<bfloat16>(const KernelSizes&);

}  // namespace annulus::bench
