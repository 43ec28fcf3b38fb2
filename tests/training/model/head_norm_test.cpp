// Biases of q, k and v, norms of the heads of q and k, and rotary positions, between the joint product and
// attention.

#include <annulus/attention/sequence/layout.hpp>

#include "training/model/ops.hpp"
#include "training/model/ops_support.hpp"

namespace annulus::model {
namespace {

using test::tolerance;
using test::values_of;
using Exec = test::TestExec;

/// Random inputs, and what the kernels make of them.
template <class T>
struct Problem {
  static constexpr int heads = 6, kv_heads = 2, joint = heads + 2 * kv_heads;
  static constexpr float epsilon = 1e-3f;
  int head_dim, batch, tokens;
  bool normed = true, joint_norm = false, from_one = false;
  int turned = head_dim;  // elements of a head
  int rows = batch * tokens, width = joint * head_dim, pairs = turned / 2;
  Array2<float, Exec> cosine{"cosine", tokens, pairs}, sine{"sine", tokens, pairs};
  Array2<T, Exec> qkv = test::random2<T>(1, rows, width);
  int q_gains = joint_norm ? heads * head_dim : head_dim,
      k_gains = joint_norm ? kv_heads * head_dim : head_dim;
  Array1<T, Exec> gain = test::random(3, Array1<T, Exec>("gain", q_gains + k_gains));
  HeadArrays<Exec, T> out{by_head<T>(heads), by_head<T>(kv_heads), by_head<T>(kv_heads)};
  Array4<float, Exec> dq = test::random(4, by_head<float>(heads)),
                      dk = test::random(5, by_head<float>(kv_heads)),
                      dv = test::random(6, by_head<float>(kv_heads));
  Array2<T, Exec> d_qkv{"d_qkv", rows, width};
  Array1<float, Exec> d_gain = test::random(7, Array1<float, Exec>("d_gain", q_gains + k_gains));
  Array2<float, Exec> row_sums{"row_sums", rows, 4};
  Array2<float, Exec> partial{"partial", norm_partial_rows(rows), width};

  template <class E>
  Array4<E, Exec> by_head(int count) const {
    return Array4<E, Exec>("heads", batch, count, tokens, head_dim);
  }
  /// Positions whose angles float could not tell apart.
  PositionMap positions() const {
    const PositionMap shard = Layout::parse("zigzag").shard(3'000'017, 4, 1);
    return shard.slice({shard.count - tokens, shard.count});
  }
  RopeFrequencies frequencies() const { return rope_frequencies(10000, turned, {}); }
  HeadNorm<Exec, T> norm() const { return {{gain, from_one}, epsilon, joint_norm, row_sums}; }
  /// Index of the gain of an element of a head of q (0) or k (1).
  int gain_index(int which, int head, int i) const {
    return which * q_gains + (joint_norm ? head * head_dim : 0) + i;
  }

  /// Forward and backward in two chunks of rows.
  void run(const Exec& exec) const {
    rope_table<Exec>(exec, positions(), frequencies(), cosine, sine);
    Kokkos::deep_copy(exec, d_qkv, qkv);
    const int first = rows / 3;
    for (const auto& [begin, count] : {std::pair{0, first}, {first, rows - first}}) {
      const Array2<T, Exec> chunk(qkv.data() + std::int64_t{begin} * width, count, width),
          d_chunk(d_qkv.data() + std::int64_t{begin} * width, count, width);
      if (!normed) {
        split_qkv_rope<Exec, T>(exec, chunk, {cosine, sine}, out, begin);
        split_qkv_rope_backward<Exec, T>(exec, {dq, dk, dv}, {cosine, sine}, d_chunk, begin);
        continue;
      }
      split_qkv_norm_rope<Exec, T>(exec, chunk, norm(), {cosine, sine}, out, begin);
      split_qkv_norm_rope_backward<Exec, T>(exec, {dq, dk, dv}, norm(), {cosine, sine},
                                            {.d_qkv = d_chunk, .d_gain = d_gain, .partial = partial}, begin);
    }
  }
};

template <class T>
class HeadNorms : public testing::Test {};
TYPED_TEST_SUITE(HeadNorms, test::TrainingTypes, test::TypeNames);

TYPED_TEST(HeadNorms, ForwardAndBackwardMatchDoublePrecision) {
  using T = TypeParam;
  const Exec exec;
  struct Case {
    int head_dim, batch;
    bool normed, joint = false, from_one = false;
    int turned = head_dim;
  };
  for (const Case& c : {Case{16, 1, true},
                        {24, 3, true, false, true},
                        {128, 2, true},
                        {256, 1, true},
                        {16, 3, true, true},
                        {22, 2, true, true, true},
                        {128, 2, true, true},
                        {16, 1, false},
                        {24, 3, false},
                        {128, 2, false},
                        // A part of each head: in packs, and one by one.
                        {128, 2, false, false, false, 96},
                        {128, 2, true, false, false, 32},
                        {128, 1, true, true, true, 96},
                        {22, 1, false, false, false, 6},
                        {128, 1, true, false, false, 76},
                        {24, 1, true, true, false, 20}}) {
    const auto& [head_dim, batch, normed, joint, from_one, turned] = c;
    SCOPED_TRACE(testing::Message() << head_dim << ", batch " << batch << (normed ? ", normed" : "")
                                    << (joint ? ", all heads together" : "") << ", turned " << turned);
    const Problem<T> p{head_dim, batch, 47, normed, joint, from_one, turned};
    const PositionMap positions = p.positions();
    const std::vector<float> inverse = p.frequencies().inverse;
    const auto gain_before = test::copy_on_host(p.d_gain);
    p.run(exec);
    exec.fence();
    const auto qkv = values_of(p.qkv), d_qkv = values_of(p.d_qkv);
    const auto gain = values_of(p.gain);
    const auto q = values_of(p.out.q), k = values_of(p.out.k), v = values_of(p.out.v);
    const auto dq = values_of(p.dq), dk = values_of(p.dk), dv = values_of(p.dv);
    const auto d_gain = values_of(p.d_gain);
    const auto gain_of = [&](int which, int head, int i) {
      return (from_one ? 1.0 : 0.0) + double(gain(p.gain_index(which, head, i)));
    };
    std::vector<double> gain_gradient(gain.size());
    for (int row = 0; row < p.rows; ++row) {
      const int b = row / p.tokens, t = row % p.tokens;
      struct Head {
        std::vector<double> x, d;  // before the norm; the gradient behind it
        double squares = 0, dot = 0;
      };
      std::vector<Head> of(std::size_t(p.joint));
      const auto parts = [&](int h) {
        const bool is_q = h < p.heads, is_v = h >= p.heads + p.kv_heads;
        return std::tuple(is_q ? 0 : is_v ? 2 : 1, is_q ? h : is_v ? h - p.heads - p.kv_heads : h - p.heads);
      };
      for (int h = 0; h < p.joint; ++h) {
        const auto [which, own] = parts(h);
        const auto& from = which == 0 ? dq : which == 2 ? dv : dk;
        Head& head = of[std::size_t(h)];
        head.x.resize(std::size_t(head_dim));
        head.d.resize(std::size_t(head_dim));
        for (int i = 0; i < head_dim; ++i) {
          head.x[i] = qkv(row, h * head_dim + i);
          head.d[i] = from(b, own, t, i);
        }
        for (int i = 0; i < p.pairs; ++i) {
          const double angle = which == 2 ? 0 : double(positions(t)) * double(inverse[i]);
          const double c = std::cos(angle), s = std::sin(angle);
          head.d[i] = from(b, own, t, i) * c + from(b, own, t, i + p.pairs) * s;
          head.d[i + p.pairs] = from(b, own, t, i + p.pairs) * c - from(b, own, t, i) * s;
        }
        for (int i = 0; i < head_dim; ++i) {
          head.squares += head.x[i] * head.x[i];
          if (which < 2) head.dot += head.d[i] * gain_of(which, own, i) * head.x[i];
        }
      }
      for (int h = 0; h < p.joint; ++h) {
        const auto [which, own] = parts(h);
        const auto& to = which == 0 ? q : which == 2 ? v : k;
        const Head& head = of[std::size_t(h)];
        double squares = head.squares, dot = head.dot, elements = head_dim;
        if (joint && which < 2) {
          squares = dot = elements = 0;
          for (int other = 0; other < p.joint; ++other)
            if (std::get<0>(parts(other)) == which) {
              squares += of[std::size_t(other)].squares;
              dot += of[std::size_t(other)].dot;
              elements += head_dim;
            }
        }
        const bool plain = which == 2 || !normed;
        const double r = plain ? 1 : 1 / std::sqrt(squares / elements + double(p.epsilon));
        const double slack = normed ? 4e-6 : 2e-6, back_slack = normed ? 1e-5 : 2e-6;
        const auto scale = [&, which = which, own = own](int i) {
          return plain ? 1 : r * gain_of(which, own, i);
        };
        for (int i = 0; i < p.pairs; ++i) {
          const double angle = which == 2 ? 0 : double(positions(t)) * double(inverse[i]);
          const double c = std::cos(angle), s = std::sin(angle);
          const double a = head.x[i] * scale(i), z = head.x[i + p.pairs] * scale(i + p.pairs);
          ASSERT_NEAR(to(b, own, t, i), a * c - z * s, tolerance<T>(a * c - z * s, slack))
              << h << ", " << row;
          ASSERT_NEAR(to(b, own, t, i + p.pairs), z * c + a * s, tolerance<T>(z * c + a * s, slack));
        }
        for (int i = turned; i < head_dim; ++i)
          ASSERT_NEAR(to(b, own, t, i), head.x[i] * scale(i), tolerance<T>(head.x[i] * scale(i), slack))
              << h << ", " << row << ", " << i;
        for (int i = 0; i < head_dim; ++i) {
          const double unit = head.x[i] * r;
          const double dx =
              plain ? head.d[i] : r * (head.d[i] * gain_of(which, own, i) - unit * dot * r / elements);
          ASSERT_NEAR(d_qkv(row, h * head_dim + i), dx, tolerance<T>(dx, back_slack)) << h << ", " << row;
          if (!plain) gain_gradient[std::size_t(p.gain_index(which, own, i))] += head.d[i] * unit;
        }
      }
    }
    for (std::size_t i = 0; i < gain_gradient.size(); ++i)
      ASSERT_NEAR(d_gain(i), gain_before(i) + gain_gradient[i], 1e-4) << i;
  }
}

// The bits do not depend on the number of threads.
TYPED_TEST(HeadNorms, SumsAreTheSameBitsEveryTime) {
  using T = TypeParam;
  const auto gradients = [](const Exec& exec) {
    const Problem<T> p{64, 2, 301};
    p.run(exec);
    const Array1<float, Exec> d_bias("d_bias", p.width);
    add_column_sums<Exec, T>(exec, p.d_qkv, d_bias, p.partial);
    exec.fence();
    return std::tuple(test::copy_on_host(p.d_qkv), test::copy_on_host(p.d_gain), test::copy_on_host(d_bias));
  };
  const auto once = gradients(Exec()),
             again = gradients(test::new_instance<Exec>());  // on the host: one thread
  const auto expect_equal = [](const auto& a, const auto& b) {
    for (std::size_t i = 0; i < a.size(); ++i) ASSERT_EQ(float(a.data()[i]), float(b.data()[i])) << i;
  };
  expect_equal(std::get<0>(once), std::get<0>(again));
  expect_equal(std::get<1>(once), std::get<1>(again));
  expect_equal(std::get<2>(once), std::get<2>(again));
}

TYPED_TEST(HeadNorms, RowsAreFilledWithTheBias) {
  using T = TypeParam;
  const Exec exec;
  for (const int columns : {8, 333, 2056}) {
    const int tokens = 13;
    const auto bias = test::random(2, Array1<T, Exec>("bias", columns));
    const Array2<T, Exec> out("out", tokens, columns), sum("sum", tokens, columns);
    const auto x = test::random2<T>(5, tokens, columns);
    fill_rows<Exec, T>(exec, bias, out);
    add_to_rows<Exec, T>(exec, bias, x, sum);
    exec.fence();
    const auto expected = values_of(bias);
    const auto values = values_of(out), before = values_of(x), sums = values_of(sum);
    for (int t = 0; t < tokens; ++t)
      for (int c = 0; c < columns; ++c) {
        ASSERT_EQ(values(t, c), expected(c)) << t << ", " << c;
        ASSERT_EQ(sums(t, c), float(T(before(t, c) + expected(c)))) << t << ", " << c;
      }
  }
}

TYPED_TEST(HeadNorms, GradientsOfBiasesAreSumsOverTokens) {
  using T = TypeParam;
  const Exec exec;
  for (const int columns : {8, 333, 2056}) {
    const int tokens = 131;
    const auto x = test::random2<T>(8, tokens, columns);
    const auto sum = test::random(9, Array1<float, Exec>("sum", columns));
    const Array2<float, Exec> partial("partial", norm_partial_rows(tokens), columns);
    const auto before = test::copy_on_host(sum);
    add_column_sums<Exec, T>(exec, x, sum, partial);
    exec.fence();
    const auto values = values_of(x);
    const auto sums = values_of(sum);
    for (int c = 0; c < columns; ++c) {
      double expected = before(c);
      for (int t = 0; t < tokens; ++t) expected += values(t, c);
      ASSERT_NEAR(sums(c), expected, 2e-5) << c;
    }
  }
}

}  // namespace
}  // namespace annulus::model
