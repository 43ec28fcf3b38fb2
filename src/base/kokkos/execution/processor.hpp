#pragma once

#include <string>
#include <string_view>

namespace annulus {

/// The vector and matrix instructions of this machine's CPU as the operating system lists them: "avx avx2
/// avx512f fma …", in alphabetical order; "unknown" where it lists none.
std::string cpu_instruction_sets();

/// The instruction sets that the text of a /proc/cpuinfo lists, in alphabetical order; "unknown" where it
/// lists none.
std::string cpu_instruction_sets(std::string_view cpuinfo);

/// The model of the GPU that this rank computes on, as its driver names it; empty in a build for CPUs alone.
/// Kokkos is initialized.
std::string gpu_model();

}  // namespace annulus
