// Adds up a one of each of four ranks that are threads: Kokkos, MPI and the library are linked.
#include <cstdio>

#include <annulus/attention/comm/loopback.hpp>

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  annulus::comm::run_loopback(annulus::Topology::uniform(4, 4), [](annulus::comm::Communicator& ranks) {
    const int count = ranks.all_reduce_value(1, annulus::comm::ReduceOp::sum);
    if (ranks.rank() == 0) std::printf("%d ranks\n", count);
  });
}
