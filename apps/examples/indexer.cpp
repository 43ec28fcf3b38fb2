// Sparse attention by scores of one's own (an indexer's): each query takes its own block of keys and those
// with the highest scores before it, wherever their rows lie.
//   mpirun -n 3 indexer
#include <fmt/format.h>
#include <Kokkos_Core.hpp>

#include <cmath>
#include <exception>

#include <annulus/attention.hpp>

using namespace annulus;

static void run(comm::Communicator& ranks) {
  const HostExec exec;
  constexpr std::int64_t tokens = 1001, block = 64, blocks = 16;
  plan::Problem problem;
  problem.topology = ranks.topology();
  problem.layout = Layout::parse("zigzag");
  problem.mask = Mask::parse("causal", tokens);
  problem.head_dim = 16;
  executor::Attention<HostExec, float> attention(exec, ranks,
                                                 plan::make_plan("ring", problem, plan::Pass::forward),
                                                 plan::make_plan("ring", problem, plan::Pass::backward));
  // moba: a list of blocks for each query and query head, three of 64 tokens, its own one among them.
  sparsity::SparseAttention<HostExec, float> sparse(ranks, attention, problem,
                                                    sparsity::PatternOptions::parse("moba:block=64,top=3"));

  const PositionMap rows = problem.owned(ranks.rank());
  Array4<float, HostExec> q("q", 1, 1, rows.count, 16), k("k", 1, 1, rows.count, 16),
      v("v", 1, 1, rows.count, 16), out("out", 1, 1, rows.count, 16);
  Array3<float, HostExec> lse("lse", 1, 1, rows.count);
  for (std::int64_t row = 0; row < rows.count; ++row)
    for (int column = 0; column < 16; ++column) v(0, 0, row, column) = float(rows(row));

  // The scores of this rank's queries, row by row, for every block of the sequence: here the first two win.
  Array4<float, HostExec> scores("scores", 1, 1, rows.count, blocks);
  for (std::int64_t row = 0; row < rows.count; ++row)
    for (std::int64_t b = 0; b < blocks; ++b) scores(0, 0, row, b) = b < 2 ? 1.0f : 0.0f;
  const auto selection = sparse.select_by_scores(exec, scores);
  sparse.forward(exec, {.q = q, .k = k, .v = v, .scale = 0.25f, .out = out, .lse = lse}, *selection);
  const sparsity::SelectedPairs pairs = sparse.check_pairs(exec);  // throws where other pairs were computed

  // All products of q and k are zero, so a row is the mean of the positions that its query takes.
  double worst = 0;
  for (std::int64_t row = 0; row < rows.count; ++row) {
    const auto position = double(rows(row)),
               first = std::floor(position / block) * block;  // of its own block
    const double own = position + 1 - first, others = std::fmin(first, 2 * block),
                 sum = own * (first + position) / 2 + others * (others - 1) / 2;
    worst = std::fmax(worst, std::abs(out(0, 0, row, 0) - sum / (own + others)));
  }
  fmt::print("rank {} of {}: {} of {} pairs in all, largest error {:.1e}\n", ranks.rank(), ranks.size(),
             pairs.forward.selected, tokens * (tokens + 1) / 2, worst);
  require(worst < 1e-3, "sparse attention is wrong by {}", worst);
}

int main(int argc, char** argv) {
  const comm::MpiEnvironment mpi(argc, argv);
  try {
    const Kokkos::ScopeGuard kokkos(kokkos_settings(mpi.ranks_sharing_cores()));
    run(*mpi.world());
  } catch (const std::exception& error) {
    mpi.abort(error.what());
  }
}
