#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include <annulus/model/ops.hpp>
#include <annulus/sequence/layout.hpp>

namespace annulus::model {
namespace {

using Exec = HostExec;

Array2<float, Exec> random2(int rows, int columns, unsigned seed) {
  Array2<float, Exec> a("a", rows, columns);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) a(i, j) = normal(random);
  return a;
}

TEST(RmsNorm, ForwardAndBackwardMatchDoublePrecisionDifferences) {
  const Exec exec;
  const int tokens = 131, hidden = 20;  // more than two partial sums of the gain's gradient
  const float epsilon = 1e-3f;
  const auto x = random2(tokens, hidden, 1), d_out = random2(tokens, hidden, 2);
  Array1<float, Exec> gain("gain", hidden), r("r", tokens), d_gain("d_gain", hidden);
  for (int c = 0; c < hidden; ++c) gain(c) = 0.5f + 0.1f * c;
  Array2<float, Exec> out("out", tokens, hidden), again("again", tokens, hidden), d_x("d_x", tokens, hidden);
  Array2<float, Exec> partial("partial", norm_partial_rows(tokens), hidden);
  Kokkos::deep_copy(d_x, 1.0f);  // gradients are added
  Kokkos::deep_copy(d_gain, 2.0f);
  rms_norm<Exec, float>(exec, x, gain, epsilon, out, r);
  rms_norm_again<Exec, float>(exec, x, gain, r, again);
  rms_norm_backward<Exec, float>(exec, x, gain, r, d_out, d_x, d_gain, partial);
  exec.fence();

  // f = Σ d_out ∘ norm(x) of one row, in double
  const auto f = [&](int t, const std::vector<double>& row, int g, double dg) {
    double squares = 0, sum = 0;
    for (const double value : row) squares += value * value;
    const double scale = 1 / std::sqrt(squares / hidden + epsilon);
    for (int c = 0; c < hidden; ++c) sum += d_out(t, c) * row[c] * scale * (gain(c) + (c == g ? dg : 0));
    return sum;
  };
  std::vector<double> expected_gain(hidden, 2.0);
  for (int t = 0; t < tokens; ++t) {
    std::vector<double> row(hidden);
    double squares = 0;
    for (int c = 0; c < hidden; ++c) squares += (row[c] = x(t, c)) * row[c];
    for (int c = 0; c < hidden; ++c) {
      EXPECT_NEAR(out(t, c), row[c] / std::sqrt(squares / hidden + epsilon) * gain(c), 1e-5);
      EXPECT_EQ(again(t, c), out(t, c));
      const double step = 1e-5;
      auto up = row, down = row;
      up[c] += step;
      down[c] -= step;
      EXPECT_NEAR(d_x(t, c), 1.0 + (f(t, up, -1, 0) - f(t, down, -1, 0)) / (2 * step), 2e-5);
      expected_gain[c] += (f(t, row, c, step) - f(t, row, c, -step)) / (2 * step);
    }
  }
  for (int c = 0; c < hidden; ++c) EXPECT_NEAR(d_gain(c), expected_gain[c], 1e-4);
}

TEST(SwiGlu, ForwardAndBackwardMatchDoublePrecisionDifferences) {
  const Exec exec;
  const int tokens = 9, ffn = 7;
  const auto gate_up = random2(tokens, 2 * ffn, 3), d_out = random2(tokens, ffn, 4);
  Array2<float, Exec> out("out", tokens, ffn), d("d", tokens, 2 * ffn);
  swiglu<Exec, float>(exec, gate_up, out);
  swiglu_backward<Exec, float>(exec, gate_up, d_out, d);
  exec.fence();
  const auto f = [](double gate, double up) { return gate / (1 + std::exp(-gate)) * up; };
  const double step = 1e-5;
  for (int t = 0; t < tokens; ++t)
    for (int c = 0; c < ffn; ++c) {
      const double gate = gate_up(t, c), up = gate_up(t, ffn + c);
      EXPECT_NEAR(out(t, c), f(gate, up), 1e-5);
      EXPECT_NEAR(d(t, c), d_out(t, c) * (f(gate + step, up) - f(gate - step, up)) / (2 * step), 1e-5);
      EXPECT_NEAR(d(t, ffn + c), d_out(t, c) * f(gate, 1), 1e-5);
    }
  swiglu_backward<Exec, float>(exec, gate_up, d_out, gate_up);  // in place
  exec.fence();
  for (int t = 0; t < tokens; ++t)
    for (int c = 0; c < 2 * ffn; ++c) EXPECT_EQ(gate_up(t, c), d(t, c));
}

TEST(Embedding, LooksUpAndSumsTheRowsOfEachToken) {
  const Exec exec;
  const int tokens = 50, vocabulary = 8, hidden = 5;
  const auto table = random2(vocabulary, hidden, 5), d_out = random2(tokens, hidden, 6);
  Array1<std::int32_t, Exec> ids("ids", tokens), order("order", tokens);
  std::mt19937 random(9);
  int next = 0;
  for (int t = 0; t < tokens; ++t)
    ids(t) = static_cast<std::int32_t>(random() % (vocabulary - 1));  // the last is never used
  for (int id = 0; id < vocabulary; ++id)
    for (int t = 0; t < tokens; ++t)
      if (ids(t) == id) order(next++) = t;
  Array2<float, Exec> out("out", tokens, hidden), d_table("d_table", vocabulary, hidden);
  Kokkos::deep_copy(d_table, 1.0f);
  embed<Exec, float>(exec, ids, table, out);
  embed_backward<Exec, float>(exec, ids, order, d_out, d_table);
  exec.fence();
  for (int id = 0; id < vocabulary; ++id)
    for (int c = 0; c < hidden; ++c) {
      double sum = 1.0;
      for (int t = 0; t < tokens; ++t) {
        if (ids(t) != id) continue;
        sum += d_out(t, c);
        EXPECT_EQ(out(t, c), table(id, c));
      }
      EXPECT_NEAR(d_table(id, c), sum, 1e-5);
    }
}

TEST(Rope, RotatesByGlobalPositionsWhateverTheLayout) {
  const Exec exec;
  const std::int64_t length = 3'000'017;  // positions whose angles float could not tell apart
  const int head_dim = 16, heads = 3, kv_heads = 1, rows = 12;
  const PositionMap shard = Layout::parse("zigzag").shard(length, 4, 1);
  const PositionMap positions = shard.slice({shard.count - rows, shard.count});
  Array2<float, Exec> cosine("cosine", rows, head_dim / 2), sine("sine", rows, head_dim / 2);
  rope_table<Exec>(exec, positions, 10000.0f, cosine, sine);
  const auto qkv = random2(rows, (heads + 2 * kv_heads) * head_dim, 7);
  Array4<float, Exec> q("q", 1, heads, rows, head_dim), k("k", 1, kv_heads, rows, head_dim),
      v("v", 1, kv_heads, rows, head_dim);
  split_rotate<Exec, float>(exec, qkv, cosine, sine, q, k, v);
  Array2<float, Exec> back("back", rows, qkv.extent(1));
  split_rotate_backward<Exec, float>(exec, q, k, v, cosine, sine, back);  // a rotation's transpose undoes it
  exec.fence();
  for (int t = 0; t < rows; ++t) {
    for (std::size_t c = 0; c < qkv.extent(1); ++c) EXPECT_NEAR(back(t, c), qkv(t, c), 1e-5);
    for (int i = 0; i < head_dim / 2; ++i) {
      const double angle = double(positions(t)) * std::pow(10000.0, -2.0 * i / head_dim);
      for (int h = 0; h < heads; ++h) {
        const double a = qkv(t, h * head_dim + i), b = qkv(t, h * head_dim + head_dim / 2 + i);
        EXPECT_NEAR(q(0, h, t, i), a * std::cos(angle) - b * std::sin(angle), 1e-5);
        EXPECT_NEAR(q(0, h, t, head_dim / 2 + i), b * std::cos(angle) + a * std::sin(angle), 1e-5);
      }
      EXPECT_EQ(v(0, 0, t, i), qkv(t, (heads + kv_heads) * head_dim + i));
    }
  }
}

TEST(Heads, JoinAndSplitAreInverse) {
  const Exec exec;
  const auto joined = random2(6, 3 * 8, 8);
  Array4<float, Exec> split("split", 1, 3, 6, 8);
  Array2<float, Exec> again("again", 6, 3 * 8);
  split_heads<Exec, float>(exec, joined, split);
  join_heads<Exec, float>(exec, split, again);
  exec.fence();
  EXPECT_EQ(split(0, 2, 4, 5), joined(4, 2 * 8 + 5));
  for (int t = 0; t < 6; ++t)
    for (int c = 0; c < 24; ++c) EXPECT_EQ(again(t, c), joined(t, c));
}

}  // namespace
}  // namespace annulus::model
