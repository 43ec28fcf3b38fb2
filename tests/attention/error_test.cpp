// What callers can get wrong, and what they are told.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <annulus/attention/local.hpp>
#include <functional>

#include "support/attention_rows.hpp"
#include "support/error_text.hpp"

namespace annulus::test {
namespace {

using attention::Kernel;

/// Arguments that fit; tests spoil one at a time.
struct Arguments {
  static Strided4<float, HostExec> array(std::int64_t heads, std::int64_t rows, std::int64_t head_dim = 16) {
    return Array4<float, HostExec>("annulus::test::array", 1, heads, rows, head_dim);
  }
  static Strided3<float, HostExec> numbers(std::int64_t heads, std::int64_t rows) {
    return Array3<float, HostExec>("annulus::test::numbers", 1, heads, rows);
  }
  static PositionMap rows(std::int64_t count, std::int64_t first = 0) {
    return {.base = first, .hi = 0, .lo = 1, .block = 100, .first = 0, .count = count};
  }

  Mask mask = Mask::parse("causal", 20);
  attention::Operands<float, HostExec> in{array(4, 6), array(2, 8), array(2, 8), rows(6, 10),
                                          rows(8),     mask.rule(), 0.25f};
  Strided4<float, HostExec> out = array(4, 6), d_out = array(4, 6), dq = array(4, 6), dk = array(2, 8),
                            dv = array(2, 8);
  Strided4<float, HostExec> finished;  // none
  Strided3<float, HostExec> lse = numbers(4, 6), d = numbers(4, 6);
  Kernel kernel = Kernel::automatic;

  std::string forward() const {
    return error_text([&] {
      attention::forward<HostExec, float>(HostExec(), in, {out, lse, finished}, kernel);
    });
  }
  std::string backward() const {
    return error_text([&] {
      attention::backward<HostExec, float>(HostExec(), in, {d_out, lse, d, dq, dk, dv}, kernel);
    });
  }
};

std::string forward_error(const std::function<void(Arguments&)>& spoil) {
  Arguments arguments;
  spoil(arguments);
  return arguments.forward();
}

std::string backward_error(const std::function<void(Arguments&)>& spoil) {
  Arguments arguments;
  spoil(arguments);
  return arguments.backward();
}

TEST(LocalErrors, FittingArgumentsAreTaken) {
  for (const Kernel kernel : {Kernel::automatic, Kernel::portable, Kernel::host_simd}) {
    EXPECT_EQ(forward_error([&](Arguments& a) { a.kernel = kernel; }), "no error");
    EXPECT_EQ(backward_error([&](Arguments& a) { a.kernel = kernel; }), "no error");
  }
}

TEST(LocalErrors, HeadDimension) {
  for (const int good : {16, 24, 128, 256}) EXPECT_NO_THROW(attention::check_head_dim(good));
  for (const int bad : {-8, 0, 8, 15, 20, 257, 264})
    EXPECT_THROW(attention::check_head_dim(bad), Error) << bad;
  EXPECT_EQ(error_text([] { attention::check_head_dim(20, "model.head_dim"); }),
            "model.head_dim is 20: attention takes head dimensions from 16 to 256 in multiples of 8");
  EXPECT_EQ(forward_error([](Arguments& a) {
              a.in.q = a.out = Arguments::array(4, 6, 264);
              a.in.k = a.in.v = Arguments::array(2, 8, 264);
            }),
            "head_dim is 264: attention takes head dimensions from 16 to 256 in multiples of 8");
}

TEST(LocalErrors, Heads) {
  EXPECT_EQ(forward_error([](Arguments& a) { a.in.k = a.in.v = Arguments::array(3, 8); }),
            "Attention: 4 heads are not divisible by 3 kv heads: use a multiple");
  EXPECT_EQ(forward_error([](Arguments& a) { a.in.k = a.in.v = Arguments::array(0, 8); }),
            "Attention: 4 heads are not divisible by 0 kv heads: use a multiple");
}

TEST(LocalErrors, BlockLists) {
  const auto error_of = [](std::int64_t lists, std::int64_t heads_of_list) {
    return forward_error([&](Arguments& a) {
      static constexpr std::int64_t starts[] = {0, 1, 0, 1, 0, 1, 0, 1}, columns[] = {0};
      a.in.mask.block_size = 20;
      a.in.mask.block_row_starts = starts;
      a.in.mask.block_columns = columns;
      a.in.mask.block_lists = lists;
      a.in.mask.heads_of_list = heads_of_list;
    });
  };
  EXPECT_EQ(error_of(3, 1),
            "Attention: the mask has 3 block lists of 1 heads each but q has 4 heads in all sequences: give "
            "one list for all heads (block_lists 1, heads_of_list 0), or lists that together have as many "
            "heads");
  // Lists without a number of heads would all be the first one.
  EXPECT_THAT(error_of(4, 0), testing::HasSubstr("4 block lists of 0 heads each but q has 4 heads"));
  for (const auto& [lists, heads_of_list] : {std::pair(1, 0), {1, 4}, {2, 2}, {4, 1}})
    EXPECT_EQ(error_of(lists, heads_of_list), "no error") << lists << " of " << heads_of_list;
}

TEST(LocalErrors, Extents) {
  EXPECT_EQ(forward_error([](Arguments& a) { a.in.v = Arguments::array(2, 7); }),
            "Attention: v has the extents (1, 2, 7, 16) but k has (1, 2, 8, 16): v must match k");
  EXPECT_EQ(
      forward_error([](Arguments& a) { a.in.k = a.in.v = Arguments::array(2, 8, 24); }),
      "Attention: k has the extents (1, 2, 8, 24) but q has (1, 4, 6, 16): batch and head_dim must be equal");
  EXPECT_EQ(forward_error([](Arguments& a) { a.out = Arguments::array(4, 5); }),
            "Attention: out has the extents (1, 4, 5, 16) but q has (1, 4, 6, 16): out must match q");
  EXPECT_EQ(forward_error([](Arguments& a) { a.lse = Arguments::numbers(2, 6); }),
            "Attention: lse has the extents (1, 2, 6) but q has (1, 4, 6, 16): lse must match q");
  EXPECT_EQ(
      forward_error([](Arguments& a) { a.finished = Arguments::array(4, 5); }),
      "Attention: finished has the extents (1, 4, 5, 16) but q has (1, 4, 6, 16): finished must match q");
  EXPECT_EQ(backward_error([](Arguments& a) { a.d_out = Arguments::array(4, 5); }),
            "Attention: d_out has the extents (1, 4, 5, 16) but q has (1, 4, 6, 16): d_out must match q");
  EXPECT_EQ(backward_error([](Arguments& a) { a.d = Arguments::numbers(4, 5); }),
            "Attention: d has the extents (1, 4, 5) but q has (1, 4, 6, 16): d must match q");
  EXPECT_EQ(backward_error([](Arguments& a) { a.dq = a.dk; }),
            "Attention: dq has the extents (1, 2, 8, 16) but q has (1, 4, 6, 16): dq must match q");
  EXPECT_EQ(backward_error([](Arguments& a) { a.dk = a.dq; }),
            "Attention: dk has the extents (1, 4, 6, 16) but k has (1, 2, 8, 16): dk must match k");
  EXPECT_EQ(backward_error([](Arguments& a) { a.dv = Arguments::array(1, 8); }),
            "Attention: dv has the extents (1, 1, 8, 16) but v has (1, 2, 8, 16): dv must match v");
}

TEST(LocalErrors, Strides) {
  EXPECT_EQ(
      forward_error([](Arguments& a) {
        static std::vector<float> memory(4 * 6 * 16 * 2);
        a.in.q = Strided4<float, HostExec>(memory.data(), Kokkos::LayoutStride(1, 768, 4, 192, 6, 32, 16, 2));
      }),
      "Attention: q (1, 4, 6, 16) has stride 2 in head_dim: pass an array whose last index is contiguous");
}

TEST(LocalErrors, Positions) {
  EXPECT_EQ(
      forward_error([](Arguments& a) { a.in.q_positions = Arguments::rows(5, 10); }),
      "Attention: q_positions describes 5 rows but q has 6: pass the position map of exactly these rows");
  EXPECT_EQ(
      forward_error([](Arguments& a) { a.in.kv_positions = Arguments::rows(9); }),
      "Attention: kv_positions describes 9 rows but k has 8: pass the position map of exactly these rows");
  EXPECT_EQ(forward_error([](Arguments& a) { a.in.q_positions = Arguments::rows(6, 15); }),
            "Attention: q_positions reaches from 15 to 20 but the mask is for 20 tokens: parse the mask for "
            "the whole "
            "sequence");
}

TEST(LocalErrors, Scale) {
  EXPECT_EQ(forward_error([](Arguments& a) { a.in.scale = std::numeric_limits<float>::infinity(); }),
            "Attention: the scale inf is not finite: usual is 1 / sqrt(head_dim)");
}

TEST(LocalErrors, MergeAndRowDot) {
  const HostExec exec;
  const auto out = Arguments::array(4, 6), other = Arguments::array(4, 5);
  const auto lse = Arguments::numbers(4, 6);
  EXPECT_EQ(error_text([&] { attention::start_forward(exec, other, lse); }),
            "Attention: lse has the extents (1, 4, 6) but out has (1, 4, 5, 16): lse must match out");
  EXPECT_EQ(error_text([&] { attention::merge<HostExec>(exec, other, lse, out, lse); }),
            "Attention: other_out has the extents (1, 4, 5, 16) but out has (1, 4, 6, 16): other_out must "
            "match out");
  EXPECT_EQ(error_text([&] { attention::row_dot<HostExec, float>(exec, out, other, lse); }),
            "Attention: d_out has the extents (1, 4, 5, 16) but out has (1, 4, 6, 16): d_out must match out");
}

#if defined(KOKKOS_ENABLE_SERIAL) && defined(KOKKOS_ENABLE_OPENMP)
TEST(LocalErrors, TheSimdKernelIsTheHosts) {
  const Kokkos::Serial exec;
  const Array4<float, Kokkos::Serial> q("annulus::test::q", 1, 4, 6, 16), k("annulus::test::k", 1, 2, 8, 16);
  const Array3<float, Kokkos::Serial> lse("annulus::test::lse", 1, 4, 6);
  const Mask mask = Mask::parse("causal", 20);
  const attention::Operands<float, Kokkos::Serial> in{
      q, k, k, Arguments::rows(6), Arguments::rows(8), mask.rule(), 1.0f};
  EXPECT_EQ(
      error_text([&] { attention::forward<Kokkos::Serial, float>(exec, in, q, lse, Kernel::host_simd); }),
      "Attention: the kernel host_simd does not take q (1, 4, 6, 16) on the execution space Serial: use the "
      "kernel "
      "automatic or portable");
}
#endif

TEST(LocalErrors, TensorCoresAreNotTheHosts) {
  EXPECT_EQ(
      forward_error([](Arguments& a) { a.kernel = Kernel::mma; }),
      fmt::format("Attention: the kernel mma takes bf16 and f16, head_dim 64 and 128, a positive scale, "
                  "rows that start at multiples of 16 bytes (fp32 rows: 8), and NVIDIA GPUs of compute "
                  "capability 8.0 or newer, not q (1, 4, 6, 16) of 4 bytes an element on the execution "
                  "space {}: use the kernel automatic or portable",
                  HostExec::name()));
}

TEST(Kernel, Names) {
  EXPECT_EQ(attention::name_of(Kernel::automatic), "automatic");
  EXPECT_EQ(attention::name_of(Kernel::portable), "portable");
  EXPECT_EQ(attention::name_of(Kernel::host_simd), "host_simd");
  EXPECT_EQ(attention::name_of(Kernel::mma), "mma");
  EXPECT_EQ(attention::parse_kernel("mma"), Kernel::mma);
  EXPECT_EQ(attention::parse_kernel("tensor_cores"), Kernel::tensor_cores);
}

}  // namespace
}  // namespace annulus::test
