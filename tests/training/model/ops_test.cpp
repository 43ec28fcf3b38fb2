

#include "training/model/ops.hpp"
#include "base/kokkos/cast.hpp"
#include "training/model/ops_support.hpp"

namespace annulus::model {
namespace {

using test::random2;
using test::tolerance;
using test::values_of;
using Exec = test::TestExec;

template <class T>
class Ops : public testing::Test {};
TYPED_TEST_SUITE(Ops, test::TrainingTypes, test::TypeNames);

// Widths that kernels take in packs, of more and fewer than a warp's worth, and widths that they cannot.
constexpr int widths[] = {8, 20, 64, 333, 2056};

TYPED_TEST(Ops, RmsNormForwardAndBackwardMatchDoublePrecision) {
  using T = TypeParam;
  const Exec exec;
  const float epsilon = 1e-3f;
  // Onto a residual, by 1 + w, and of a gradient that holds nothing yet; or none of them.
  for (const auto& [hidden, other] : {std::pair{8, false},
                                      {20, true},
                                      {64, false},
                                      {64, true},
                                      {333, false},
                                      {333, true},
                                      {2056, false},
                                      {2056, true}}) {
    SCOPED_TRACE(testing::Message() << hidden << ", " << other);
    const int tokens = 131;  // more than two partial sums of the gain's gradient
    const auto x = random2<T>(1, tokens, hidden), d_out = random2<T>(2, tokens, hidden),
               d_x = random2<T>(3, tokens, hidden);  // the residual's gradient is there before
    const auto weight = test::random(4, Array1<T, Exec>("gain", hidden));
    const NormGain<Exec, T> gain(weight, other);
    const auto d_gain = test::random(5, Array1<float, Exec>("d_gain", hidden));
    const Array1<float, Exec> r("r", tokens);
    const auto residual = random2<T>(6, tokens, hidden);
    const Array2<T, Exec> out("out", tokens, hidden), again("again", tokens, hidden);
    const Array2<float, Exec> partial("partial", norm_partial_rows(tokens), hidden);
    const auto d_before = test::copy_on_host(d_x);
    const auto gain_before = test::copy_on_host(d_gain);
    if (other)
      rms_norm_onto<Exec, T>(exec, x, gain, epsilon, residual, out, r);
    else
      rms_norm<Exec, T>(exec, x, gain, epsilon, out, r);
    rms_norm_recompute<Exec, T>(exec, x, gain, r, again);
    rms_norm_backward<Exec, T>(exec, x, gain, r, d_out,
                               {.d_x = d_x, .d_gain = d_gain, .partial = partial, .fresh_d_x = other});
    exec.fence();

    const auto hx = values_of(x), hd = values_of(d_out), hout = values_of(out), hagain = values_of(again),
               hdx = values_of(d_x), onto = values_of(residual);
    const auto weights = values_of(weight);
    const auto hg = [&](int c) { return (other ? 1.0 : 0.0) + double(weights(c)); };
    const auto hdg = values_of(d_gain);
    std::vector<double> gain_gradient(hidden);
    for (int t = 0; t < tokens; ++t) {
      double squares = 0, dot = 0;
      for (int c = 0; c < hidden; ++c) squares += double(hx(t, c)) * hx(t, c);
      const double s = 1 / std::sqrt(squares / hidden + epsilon);
      for (int c = 0; c < hidden; ++c) dot += double(hd(t, c)) * hg(c) * hx(t, c) * s;
      for (int c = 0; c < hidden; ++c) {
        const double normed = hx(t, c) * s * hg(c);
        const double sum = other ? onto(t, c) + normed : normed;
        ASSERT_NEAR(hout(t, c), sum, tolerance<T>(sum, 2e-6)) << t << ", " << c;
        ASSERT_NEAR(hagain(t, c), normed, tolerance<T>(normed, 2e-6)) << t << ", " << c;
        if (!other) {
          ASSERT_EQ(float(hagain(t, c)), float(hout(t, c)));
        }
        const double dx = (other ? 0.0 : double(d_before(t, c))) +
                          s * (double(hd(t, c)) * hg(c) - hx(t, c) * s * dot / hidden);
        ASSERT_NEAR(hdx(t, c), dx, tolerance<T>(dx, 1e-5)) << t << ", " << c;
        gain_gradient[c] += hd(t, c) * hx(t, c) * s;
      }
    }
    for (int c = 0; c < hidden; ++c)
      ASSERT_NEAR(hdg(c), gain_before(c) + gain_gradient[c], 1e-4) << "column " << c;
  }
}

TYPED_TEST(Ops, GatedForwardAndBackwardMatchDoublePrecision) {
  using T = TypeParam;
  const Exec exec;
  const double a = 0.044715, root = std::sqrt(2 / 3.14159265358979323846);
  for (const int ffn : widths) {
    for (const int offset : {0, 1}) {  // of the arrays in memory: kernels must not ask for aligned rows
      const Activation activation = ffn % 3 == offset ? Activation::gelu_tanh : Activation::silu;
      SCOPED_TRACE(testing::Message()
                   << ffn << " columns from element " << offset << ", " << name_of_choice(activation));
      const int tokens = 19;
      const auto memory = test::random(6, Array1<T, Exec>("memory", tokens * 4 * ffn + 3));
      Array2<T, Exec> gate_up(memory.data() + offset, tokens, 2 * ffn),
          d_out(gate_up.data() + gate_up.size(), tokens, ffn), out(d_out.data() + d_out.size(), tokens, ffn);
      const Array2<T, Exec> d("d", tokens, 2 * ffn);
      gated<Exec, T>(exec, activation, gate_up, out);
      gated_backward<Exec, T>(exec, activation, gate_up, d_out, d);
      const auto in = test::copy_on_host(gate_up), hd_out = test::copy_on_host(d_out),
                 hout = test::copy_on_host(out), hd = test::copy_on_host(d);
      gated_backward<Exec, T>(exec, activation, gate_up, d_out, gate_up);  // in place
      const auto in_place = test::copy_on_host(gate_up);
      for (int t = 0; t < tokens; ++t)
        for (int c = 0; c < ffn; ++c) {
          const double gate = in(t, c), up = in(t, ffn + c), sigmoid = 1 / (1 + std::exp(-gate)),
                       tanh = std::tanh(root * (gate + a * gate * gate * gate)),
                       d_tanh = (1 - tanh * tanh) * root * (1 + 3 * a * gate * gate);
          const bool silu = activation == Activation::silu;
          const double value = gate * (silu ? sigmoid : (1 + tanh) / 2),
                       slope = silu ? sigmoid * (1 + gate * (1 - sigmoid)) : (1 + tanh + gate * d_tanh) / 2;
          ASSERT_NEAR(hout(t, c), value * up, tolerance<T>(value * up, 2e-6));
          ASSERT_NEAR(hd(t, c), hd_out(t, c) * up * slope, tolerance<T>(hd_out(t, c) * up * slope, 4e-6));
          ASSERT_NEAR(hd(t, ffn + c), hd_out(t, c) * value, tolerance<T>(hd_out(t, c) * value, 2e-6));
          ASSERT_EQ(float(in_place(t, c)), float(hd(t, c)));
          ASSERT_EQ(float(in_place(t, ffn + c)), float(hd(t, ffn + c)));
        }
    }
  }
}

TYPED_TEST(Ops, GatedOfLargeNumbersIsFinite) {
  using T = TypeParam;
  const Exec exec;
  for (const Activation activation : {Activation::silu, Activation::gelu_tanh}) {
    const Array2<T, Exec> gate_up("gate_up", 1, 16), d_out("d_out", 1, 8), out("out", 1, 8), d("d", 1, 16);
    const auto in = Kokkos::create_mirror_view(gate_up);
    for (int c = 0; c < 16; ++c) in(0, c) = T(c >= 8 ? 2.0f : c % 2 == 0 ? -1e4f : 1e4f);
    Kokkos::deep_copy(gate_up, in);
    Kokkos::deep_copy(d_out, T(1.0f));
    gated<Exec, T>(exec, activation, gate_up, out);
    gated_backward<Exec, T>(exec, activation, gate_up, d_out, d);
    exec.fence();
    const auto hout = values_of(out), hd = values_of(d);
    for (int c = 0; c < 8; ++c) {
      EXPECT_EQ(float(hout(0, c)), c % 2 == 0 ? 0.0f : 2.0f * float(T(1e4f)));
      EXPECT_EQ(float(hd(0, c)), c % 2 == 0 ? 0.0f : 2.0f);
      EXPECT_EQ(float(hd(0, 8 + c)), c % 2 == 0 ? 0.0f : float(T(1e4f)));
    }
  }
}

TYPED_TEST(Ops, EmbeddingLooksUpAndSumsTheRowsOfEachToken) {
  using T = TypeParam;
  const Exec exec;
  for (const int hidden : widths) {
    SCOPED_TRACE(hidden);
    const int tokens = 1300, vocabulary = 40;  // blocks with many tokens, and tokens of many blocks
    const auto table = random2<T>(7, vocabulary, hidden), d_out = random2<T>(8, tokens, hidden);
    const Array1<std::int32_t, Exec> ids("ids", tokens), order("order", tokens);
    const auto hids = Kokkos::create_mirror_view(ids), horder = Kokkos::create_mirror_view(order);
    std::mt19937 random(9);
    int next = 0;
    for (int t = 0; t < tokens; ++t)  // the last token is never used, one is used often
      hids(t) = static_cast<std::int32_t>(t % 2 == 0 ? 3 : random() % (vocabulary - 1));
    for (int id = 0; id < vocabulary; ++id)
      for (int t = 0; t < tokens; ++t)
        if (hids(t) == id) horder(next++) = t;
    Kokkos::deep_copy(ids, hids);
    Kokkos::deep_copy(order, horder);
    const Array2<T, Exec> out("out", tokens, hidden);
    const Array2<float, Exec> d_table("d_table", vocabulary, hidden);
    const Array2<float, Exec> partial("partial", norm_partial_rows(tokens), hidden);
    Kokkos::deep_copy(d_table, 1.0f);
    const float scale = hidden == 64 ? 1.0f : 2.5f;
    embed<Exec, T>(exec, ids, table, out, scale);
    embed_backward<Exec, T>(exec, ids, order, d_out, d_table, partial, scale);
    exec.fence();
    const auto htable = values_of(table), hout = values_of(out), hd_out = values_of(d_out);
    const auto hd_table = values_of(d_table);
    for (int id = 0; id < vocabulary; ++id)
      for (int c = 0; c < hidden; ++c) {
        double sum = 1.0;
        for (int t = 0; t < tokens; ++t) {
          if (hids(t) != id) continue;
          sum += double(scale) * hd_out(t, c);
          ASSERT_EQ(float(hout(t, c)), float(T(scale * float(htable(id, c)))));
        }
        ASSERT_NEAR(hd_table(id, c), sum, 3e-5 * scale);
      }
  }
}

TYPED_TEST(Ops, HeadsAreJoinedAndSplit) {
  using T = TypeParam;
  const Exec exec;
  for (const auto& [head_dim, batch] : {std::pair{16, 1}, {20, 3}}) {
    SCOPED_TRACE(head_dim);
    const int heads = 3, tokens = 37;
    const auto joined = random2<T>(14, batch * tokens, heads * head_dim);
    const Array4<T, Exec> split("split", batch, heads, tokens, head_dim);
    const auto in = test::random(15, Array4<float, Exec>("in", batch, heads, tokens, head_dim));
    const Array2<T, Exec> out("out", batch * tokens, heads * head_dim);
    split_heads<Exec, T>(exec, joined, split);
    join_heads<Exec, T>(exec, in, out);
    exec.fence();
    const auto hjoined = values_of(joined), hout = values_of(out);
    const auto hsplit = values_of(split);
    const auto hin = values_of(in);
    for (int row = 0; row < batch * tokens; ++row)
      for (int h = 0; h < heads; ++h)
        for (int i = 0; i < head_dim; ++i) {
          const int b = row / tokens, t = row % tokens;
          ASSERT_EQ(float(hsplit(b, h, t, i)), float(hjoined(row, h * head_dim + i)));
          ASSERT_EQ(float(hout(row, h * head_dim + i)), float(T(hin(b, h, t, i))));
        }
  }
}

TYPED_TEST(Ops, SumsAreTheSameBitsEveryTime) {
  using T = TypeParam;
  const Exec exec;
  const int tokens = 700, hidden = 520;
  const auto x = random2<T>(16, tokens, hidden), d_out = random2<T>(17, tokens, hidden);
  const auto gain = test::random(18, Array1<T, Exec>("gain", hidden));
  const Array1<float, Exec> r("r", tokens);
  const Array2<T, Exec> out("out", tokens, hidden);
  const Array2<float, Exec> partial("partial", norm_partial_rows(tokens), hidden);
  const auto gradient = [&](const Exec& on) {
    const Array1<float, Exec> d_gain("d_gain", hidden);
    const Array2<T, Exec> d_x("d_x", tokens, hidden);
    rms_norm<Exec, T>(on, x, gain, 1e-5f, out, r);
    rms_norm_backward<Exec, T>(on, x, gain, r, d_out, {.d_x = d_x, .d_gain = d_gain, .partial = partial});
    on.fence();
    return std::pair(test::copy_on_host(d_gain), test::copy_on_host(d_x));
  };
  const auto once = gradient(exec), again = gradient(test::new_instance<Exec>());  // on the host: one thread
  for (int c = 0; c < hidden; ++c) ASSERT_EQ(once.first(c), again.first(c));
  for (std::size_t i = 0; i < once.second.size(); ++i)
    ASSERT_EQ(float(once.second.data()[i]), float(again.second.data()[i]));
}

TEST(Cast, RoundsToNearestAndBack) {
  const Exec exec;
  for (const int size : {0, 1, 64, 1003}) {
    const auto from = test::random(19, Array1<float, Exec>("from", size));
    const Array1<bfloat16, Exec> narrow("narrow", size);
    const Array1<float, Exec> back("back", size);
    cast<Exec, bfloat16, float>(exec, from, narrow);
    cast<Exec, float, bfloat16>(exec, narrow, back);
    exec.fence();
    const auto in = values_of(from), out = values_of(back);
    for (int i = 0; i < size; ++i) ASSERT_EQ(out(i), float(bfloat16(in(i)))) << i;
  }
}

// Kokkos computes offsets in the widest type of the indices. Arrays of a rank have more than 2³¹ elements
// with half a million tokens of width 4096.
TEST(LargeOps, ReachElementsBeyond2To31Slow) {
  using T = bfloat16;
  const Exec exec;
  constexpr std::int64_t width = 16384, last = 3, rows = (std::int64_t{1} << 31) / width + last, heads = 64,
                         kv_heads = 32, head_dim = 128, half = width / 2;
  static_assert((heads + 2 * kv_heads) * head_dim == width);
  const auto few = random2<T>(1, last, width), few_out = random2<T>(2, last, width);
  const auto few_half = random2<T>(3, last, half);
  const Array2<T, Exec> many("many", rows, width), out("out", rows, width), many_half("half", rows, half);
  const auto weight = test::random(4, Array1<T, Exec>("gain", width));
  const Array1<float, Exec> r("r", rows), few_r("r", last);
  const auto ends_like = [&](const char* what, const auto& large, const auto& small) {
    const auto end = Kokkos::subview(large, std::pair(rows - last, rows), Kokkos::ALL);
    const auto expected = values_of(small);
    Array2<T, Exec> copy("copy", last, large.extent_int(1));
    Kokkos::deep_copy(exec, copy, end);
    exec.fence();
    const auto found = values_of(copy);
    for (std::int64_t t = 0; t < last; ++t)
      for (std::int64_t c = 0; c < large.extent_int(1); ++c)
        ASSERT_EQ(float(found(t, c)), float(expected(t, c))) << what << ": " << t << ", " << c;
  };
  const auto fill = [&](const auto& large, const auto& small) {
    Kokkos::deep_copy(exec, Kokkos::subview(large, std::pair(rows - last, rows), Kokkos::ALL), small);
  };
  fill(many, few);
  fill(many_half, few_half);
  rms_norm<Exec, T>(exec, many, NormGain<Exec, T>(weight, false), 1e-5f, out, r);
  rms_norm<Exec, T>(exec, few, NormGain<Exec, T>(weight, false), 1e-5f, few_out, few_r);
  ends_like("norm", out, few_out);
  rms_norm_recompute<Exec, T>(exec, many, NormGain<Exec, T>(weight, false), r, out);
  ends_like("norm again", out, few_out);
  gated_backward<Exec, T>(exec, Activation::silu, many, many_half, out);
  gated_backward<Exec, T>(exec, Activation::silu, few, few_half, few_out);
  ends_like("gated backward", out, few_out);
  gated<Exec, T>(exec, Activation::silu, many, many_half);
  gated<Exec, T>(exec, Activation::silu, few, few_half);
  ends_like("gated", many_half, few_half);
  add_to_rows<Exec, T>(exec, weight, many, out);
  add_to_rows<Exec, T>(exec, weight, few, few_out);
  ends_like("bias", out, few_out);
  const Array1<std::int32_t, Exec> tokens("tokens", rows);
  const auto ids = Kokkos::create_mirror_view(tokens);
  for (std::int64_t t = 0; t < rows; ++t)
    ids(t) = static_cast<std::int32_t>((rows - 1 - t) % 3 == 0 ? 2 : (rows - 1 - t) % 3 == 1 ? 1 : 0);
  Kokkos::deep_copy(tokens, ids);
  embed<Exec, T>(exec, tokens, few, out, 1.0f);
  ends_like("embedding", out, few);
  // Heads: the end of the last one is that of the array.
  const auto at_end = [&](const Array4<T, Exec>& of_heads) {
    return Array2<T, Exec>(of_heads.data() + of_heads.size() - last * head_dim, last, head_dim);
  };
  const Array4<T, Exec> all(out.data(), 1, width / head_dim, rows, head_dim),
      few_all("heads", 1, width / head_dim, last, head_dim);
  split_heads<Exec, T>(exec, many, all, 0);
  split_heads<Exec, T>(exec, few, few_all, 0);
  exec.fence();
  const auto found = values_of(at_end(all)), expected = values_of(at_end(few_all));
  for (std::int64_t t = 0; t < last; ++t)
    for (std::int64_t c = 0; c < head_dim; ++c)
      ASSERT_EQ(float(found(t, c)), float(expected(t, c))) << t << ", " << c;
}

}  // namespace
}  // namespace annulus::model
