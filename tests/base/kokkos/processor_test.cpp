#include <gtest/gtest.h>

#include "base/kokkos/execution/processor.hpp"

namespace annulus {
namespace {

TEST(Processor, TellsWhatDecidesAboutArithmeticAlone) {
  EXPECT_EQ(cpu_instruction_sets("processor : 0\nmodel name : a CPU with sve in its name\n"
                                 "flags : fpu sse2 sse4_1 avx512f fma avx2 avx ibpb md_clear hypervisor\n"
                                 "processor : 1\nflags : fpu amx_tile\n"),
            "avx avx2 avx512f fma sse4_1");
  EXPECT_EQ(cpu_instruction_sets("processor\t: 0\nFeatures\t: fp asimd crc32 sve2 sve bf16\n"),
            "asimd bf16 sve sve2");
  EXPECT_EQ(cpu_instruction_sets("vendor_id : some\n"), "unknown");
}

TEST(Processor, KnowsThisMachine) {
  EXPECT_NE(cpu_instruction_sets(), "");
}

}  // namespace
}  // namespace annulus
