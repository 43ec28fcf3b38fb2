// Masks: documents in one sequence, a sliding window, and other documents for the next batch. The ranks are
// threads of one process here, which suits tests and debuggers.
#include <fmt/format.h>
#include <Kokkos_Core.hpp>

#include <cmath>
#include <vector>

#include <annulus/attention.hpp>

using namespace annulus;
using Attention = executor::Attention<HostExec, float>;

constexpr std::int64_t tokens = 24;

// One character a pair: whether the query of this line sees the key of this column.
static void draw(const Mask& mask) {
  fmt::print("{}\n", mask.to_string());
  for (std::int64_t query = 0; query < tokens; ++query) {
    for (std::int64_t key = 0; key < tokens; ++key)
      fmt::print("{}", mask.rule().allows(query, key) ? '#' : '.');
    fmt::print("\n");
  }
}

// With equal scores LSE is the logarithm of the number of keys that a query sees.
static void check(Attention& attention, const plan::Problem& problem, int rank) {
  const HostExec exec;
  const PositionMap rows = problem.owned(rank);
  Array4<float, HostExec> zero("q, k and v", 1, 1, rows.count, 16), out("out", 1, 1, rows.count, 16);
  Array3<float, HostExec> lse("lse", 1, 1, rows.count);
  attention.forward(exec, {.q = zero, .k = zero, .v = zero, .out = out, .lse = lse});
  exec.fence("the example reads the results");
  for (std::int64_t row = 0; row < rows.count; ++row) {
    double keys = 0;
    for (std::int64_t key = 0; key < tokens; ++key) keys += problem.mask.rule().allows(rows(row), key);
    require(std::abs(std::exp(lse(0, 0, row)) - keys) < 1e-3, "position {} sees other keys", rows(row));
  }
}

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  // Terms joined by + must all hold. Documents begin at 0, 5 and 15; a token sees its own and four before it.
  const Mask mask = Mask::parse("causal+window:4,0+documents:0,5,15", tokens);
  const std::vector<std::int64_t> next{0, 12};
  const Mask other = mask.with_other_documents(next);
  draw(mask);
  draw(other);

  comm::run_loopback(Topology::uniform(3, 3), [&](comm::Communicator& ranks) {
    plan::Problem problem;
    problem.topology = ranks.topology();
    problem.layout = Layout::parse("striped");
    problem.head_dim = 16;
    const auto plans = [&](plan::Pass pass) { return plan::make_plan("burst", problem, pass); };
    problem.mask = mask;
    Attention attention(HostExec(), ranks, plans(plan::Pass::forward), plans(plan::Pass::backward));
    check(attention, problem, ranks.rank());
    problem.mask = other;  // the buffers stay, the plans change
    attention.set_plans(HostExec(), plans(plan::Pass::forward), plans(plan::Pass::backward));
    check(attention, problem, ranks.rank());
  });
}
