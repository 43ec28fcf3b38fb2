// Ring attention over MPI ranks: each holds its shard of the sequence, and keys and values go around.
//   mpirun -n 4 ring [SCHEDULE [LAYOUT]]
#include <fmt/format.h>
#include <Kokkos_Core.hpp>

#include <cmath>
#include <exception>

#include <annulus/attention.hpp>

using namespace annulus;

static void run(comm::Communicator& ranks, const char* schedule, const char* layout) {
  const HostExec exec;
  plan::Problem problem;
  problem.topology = ranks.topology();  // which ranks share a node; some schedules go by it
  problem.layout = Layout::parse(layout);
  problem.mask = Mask::parse("causal", 1001);  // no number of tokens needs padding
  problem.head_dim = 16;
  const plan::Plan forward = plan::make_plan(schedule, problem, plan::Pass::forward);
  const plan::Plan backward = plan::make_plan(schedule, problem, plan::Pass::backward);
  executor::Attention<HostExec, float> attention(exec, ranks, forward, backward);

  // This rank's rows, and where each of them stands in the sequence: the value at position p is p.
  const PositionMap rows = problem.owned(ranks.rank());
  Array4<float, HostExec> q("q", 1, 1, rows.count, 16), k("k", 1, 1, rows.count, 16),
      v("v", 1, 1, rows.count, 16), out("out", 1, 1, rows.count, 16);
  Array3<float, HostExec> lse("lse", 1, 1, rows.count);
  for (std::int64_t row = 0; row < rows.count; ++row)
    for (int column = 0; column < 16; ++column) v(0, 0, row, column) = float(rows(row));
  attention.forward(exec, {.q = q, .k = k, .v = v, .scale = 0.25f, .out = out, .lse = lse});
  exec.fence("the example reads the results");

  // All scores are equal, so position p gets the mean of 0 … p, wherever these values were.
  double worst = 0;
  for (std::int64_t row = 0; row < rows.count; ++row)
    worst = std::fmax(worst, std::abs(out(0, 0, row, 0) - double(rows(row)) / 2));
  fmt::print("rank {} of {}: {} rows, {} bytes sent, largest error {:.1e}\n", ranks.rank(), ranks.size(),
             rows.count, plan::traffic(forward, ranks.rank()).sent_bytes, worst);
  require(worst < 1e-3, "ring attention is wrong by {}", worst);
}

int main(int argc, char** argv) {
  const comm::MpiEnvironment mpi(argc, argv);  // before Kokkos, and after it at the end
  try {
    const Kokkos::ScopeGuard kokkos(kokkos_settings(mpi.ranks_sharing_cores()));
    run(*mpi.world(), argc > 1 ? argv[1] : "ring", argc > 2 ? argv[2] : "zigzag");
  } catch (const std::exception& error) {
    mpi.abort(error.what());  // ends all ranks, with the message of this one
  }
}
