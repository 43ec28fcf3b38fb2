// What callers can get wrong, and what they are told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <annulus/attention/kernels/local.hpp>
#include <functional>
#include <type_traits>

#include "attention/kernels/runs_on.hpp"
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

using Spoil = std::function<void(Arguments&)>;

std::string forward_error(const Spoil& spoil) {
  Arguments arguments;
  spoil(arguments);
  return arguments.forward();
}

TEST(LocalErrors, FittingArgumentsAreTaken) {
  for (const Kernel kernel : {Kernel::automatic, Kernel::portable, Kernel::host_simd}) {
    Arguments arguments;
    arguments.kernel = kernel;
    EXPECT_EQ(arguments.forward(), "no error");
    EXPECT_EQ(arguments.backward(), "no error");
  }
}

TEST(LocalErrors, HeadDimension) {
  for (const int good : {16, 24, 128, 256}) EXPECT_NO_THROW(attention::check_head_dim(good));
  for (const int bad : {-8, 0, 8, 15, 20, 257, 264})
    EXPECT_THROW(attention::check_head_dim(bad), Error) << bad;
  EXPECT_THAT(error_text([] { attention::check_head_dim(20, "model.head_dim"); }),
              mentions("model.head_dim is 20", "16 to 256"));
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
  EXPECT_THAT(error_of(3, 1), mentions("3 block lists of 1 heads each", "q has 4 heads"));
  // Lists without a number of heads would all be the first one.
  EXPECT_THAT(error_of(4, 0), mentions("4 block lists of 0 heads each", "q has 4 heads"));
  for (const auto& [lists, heads_of_list] : {std::pair(1, 0), {1, 4}, {2, 2}, {4, 1}})
    EXPECT_EQ(error_of(lists, heads_of_list), "no error") << lists << " of " << heads_of_list;
}

TEST(LocalErrors, OfForwardNameTheArrayAndWhatItHas) {
  const struct {
    Spoil spoil;
    std::vector<std::string> names;
  } cases[] = {
      {[](Arguments& a) {
         a.in.q = a.out = Arguments::array(4, 6, 264);
         a.in.k = a.in.v = Arguments::array(2, 8, 264);
       },
       {"head_dim is 264"}},
      {[](Arguments& a) { a.in.k = a.in.v = Arguments::array(3, 8); }, {"4 heads", "3 kv heads"}},
      {[](Arguments& a) { a.in.k = a.in.v = Arguments::array(0, 8); }, {"4 heads", "0 kv heads"}},
      {[](Arguments& a) { a.in.v = Arguments::array(2, 7); },
       {"v has the extents (1, 2, 7, 16)", "k has (1, 2, 8, 16)"}},
      {[](Arguments& a) { a.in.k = a.in.v = Arguments::array(2, 8, 24); },
       {"k has the extents (1, 2, 8, 24)", "q has (1, 4, 6, 16)"}},
      {[](Arguments& a) { a.out = Arguments::array(4, 5); },
       {"out has the extents (1, 4, 5, 16)", "q has (1, 4, 6, 16)"}},
      {[](Arguments& a) { a.lse = Arguments::numbers(2, 6); }, {"lse has the extents (1, 2, 6)", "match q"}},
      {[](Arguments& a) { a.finished = Arguments::array(4, 5); }, {"finished has the extents (1, 4, 5, 16)"}},
      {[](Arguments& a) {
         static std::vector<float> memory(4 * 6 * 16 * 2);
         a.in.q =
             Strided4<float, HostExec>(memory.data(), Kokkos::LayoutStride(1, 768, 4, 192, 6, 32, 16, 2));
       },
       {"q (1, 4, 6, 16) has stride 2 in head_dim"}},
      {[](Arguments& a) { a.in.q_positions = Arguments::rows(5, 10); },
       {"q_positions describes 5 rows but q has 6"}},
      {[](Arguments& a) { a.in.kv_positions = Arguments::rows(9); },
       {"kv_positions describes 9 rows but k has 8"}},
      {[](Arguments& a) { a.in.q_positions = Arguments::rows(6, 15); },
       {"q_positions reaches from 15 to 20", "20 tokens"}},
      {[](Arguments& a) { a.in.scale = std::numeric_limits<float>::infinity(); }, {"the scale inf"}},
      {[](Arguments& a) { a.kernel = Kernel::mma; },
       {"the kernel mma takes bf16 and f16", "q (1, 4, 6, 16)", "of 4 bytes", HostExec::name()}}};
  for (const auto& [spoil, names] : cases)
    for (const std::string& name : names) EXPECT_THAT(forward_error(spoil), mentions(name));
}

TEST(LocalErrors, OfBackwardNameTheArrayAndWhatItHas) {
  const std::pair<Spoil, const char*> cases[] = {
      {[](Arguments& a) { a.d_out = Arguments::array(4, 5); }, "d_out has the extents (1, 4, 5, 16)"},
      {[](Arguments& a) { a.d = Arguments::numbers(4, 5); }, "d has the extents (1, 4, 5)"},
      {[](Arguments& a) { a.dq = a.dk; }, "dq has the extents (1, 2, 8, 16)"},
      {[](Arguments& a) { a.dk = a.dq; }, "dk has the extents (1, 4, 6, 16)"},
      {[](Arguments& a) { a.dv = Arguments::array(1, 8); }, "dv has the extents (1, 1, 8, 16)"}};
  for (const auto& [spoil, name] : cases) {
    Arguments arguments;
    spoil(arguments);
    EXPECT_THAT(arguments.backward(), mentions(name));
  }
}

TEST(LocalErrors, MergeAndRowDot) {
  const HostExec exec;
  const auto out = Arguments::array(4, 6), other = Arguments::array(4, 5);
  const auto lse = Arguments::numbers(4, 6);
  EXPECT_THAT(error_text([&] { attention::start_forward(exec, other, lse); }),
              mentions("lse has the extents (1, 4, 6)", "out has (1, 4, 5, 16)"));
  EXPECT_THAT(error_text([&] { attention::merge<HostExec>(exec, other, lse, out, lse); }),
              mentions("other_out has the extents (1, 4, 5, 16)", "out has (1, 4, 6, 16)"));
  EXPECT_THAT(error_text([&] { attention::row_dot<HostExec, float>(exec, out, other, lse); }),
              mentions("d_out has the extents (1, 4, 5, 16)", "out has (1, 4, 6, 16)"));
}

TEST(Kernel, Names) {
  for (const auto& [kernel, name] : {std::pair(Kernel::automatic, "automatic"),
                                     {Kernel::portable, "portable"},
                                     {Kernel::host_simd, "host_simd"},
                                     {Kernel::mma, "mma"},
                                     {Kernel::hopper, "hopper"},
                                     {Kernel::tensor_cores, "tensor_cores"}}) {
    EXPECT_EQ(attention::name_of(kernel), name);
    EXPECT_EQ(attention::parse_kernel(name), kernel);
  }
}

/// Kokkos::Serial stands for a device: its memory is not that in which the layouts have their runs.
TEST(RunsOn, RefusesAShardOfAnotherLayout) {
  const Mask mask = Mask::parse("documents:0,30,31,70", 97);
  const Layout layout = Layout::parse("balanced").for_mask(mask, 3), again = layout.for_mask(mask, 3),
               other = Layout::parse("balanced").for_mask(mask, 2);
  using Device = Kokkos::Serial;
  if (std::is_same_v<HostExec, Device>) GTEST_SKIP() << "there is no second space";
  const attention::RunsOn<Device> runs(Device(), {layout, again});
  for (const Layout& one : {layout, again}) {
    for (int rank = 0; rank < 3; ++rank) {
      const PositionMap shard = runs(one.shard(97, 3, rank).slice({1, 20}));
      for (std::int64_t run = 0; run <= shard.run_count; ++run)
        EXPECT_EQ(shard.device_runs[run], shard.runs[run]) << rank << ' ' << run;
      EXPECT_NE(shard.device_runs, shard.runs);
    }
  }
  EXPECT_THAT(error_text([&] { runs(other.shard(97, 2, 1)); }),
              mentions("balanced cut", "not in the memory of its device"));
  const PositionMap contiguous = Layout().shard(97, 2, 1);
  EXPECT_EQ(runs(contiguous), contiguous);
}

}  // namespace
}  // namespace annulus::test
