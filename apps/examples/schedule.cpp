// A schedule of one's own: a plan says for every rank and step what is computed and what travels; it is
// proved before anything is sent. This one sends all keys and values to all ranks, and then computes.
#include <fmt/format.h>
#include <Kokkos_Core.hpp>

#include <cmath>

#include <annulus/attention.hpp>

using namespace annulus;

// What `rank` does in `step`. Slot 0 holds its own shard, slot 1 + r what came from rank r.
static plan::Step everybody_to_everybody(const plan::Problem& problem, int rank, int step) {
  plan::Step done;
  for (int other = 0; other < problem.ranks(); ++other) {
    const bool own = other == rank;
    const plan::Slot slot = own ? plan::local_slot : 1 + other;
    for (const plan::Tensor tensor : {plan::Tensor::k, plan::Tensor::v}) {
      if (step > 0 || own) continue;
      // Posted in step 0, waited for at the beginning of step 1: they travel while step 0 computes.
      plan::Transfer out{.slice = problem.whole(tensor, rank), .wire = problem.wire(tensor)};
      out.peer = other;
      out.wait = 1;
      plan::Transfer in = out;
      in.slice = problem.whole(tensor, other);
      in.slot = slot;
      done.sends.push_back(out);
      done.receives.push_back(in);
    }
    if (own == (step == 0)) {  // its own keys in step 0, those of others in step 1
      plan::Compute compute{.q_shard = rank, .kv_shard = other};
      compute.q_rows = problem.whole(plan::Tensor::q, rank).rows;
      compute.kv_rows = problem.whole(plan::Tensor::k, other).rows;
      compute.heads = {0, problem.heads};
      compute.kv_slot = slot;
      done.computes.push_back(compute);
    }
  }
  return done;
}

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard kokkos(argc, argv);
  plan::Problem problem;
  problem.topology = Topology::uniform(3, 3);
  problem.mask = Mask::parse("full", 100);
  problem.head_dim = 16;
  plan::Plan forward{.schedule = "everybody-to-everybody", .problem = problem, .steps = 2};
  forward.step = [problem](int rank, int step) { return everybody_to_everybody(problem, rank, step); };
  plan::validate(forward);  // or an error that names rank, step and slice
  fmt::print("{}\n", plan::to_string(forward, 0));

  comm::run_loopback(problem.topology, [&](comm::Communicator& ranks) {
    const HostExec exec;
    const auto backward = plan::make_plan("ring", problem, plan::Pass::backward);  // any schedule's
    executor::Attention<HostExec, float> attention(exec, ranks, forward, backward);
    const auto rows = problem.owned(ranks.rank()).count;
    Array4<float, HostExec> zero("q, k and v", 1, 1, rows, 16), out("out", 1, 1, rows, 16);
    Array3<float, HostExec> lse("lse", 1, 1, rows);
    attention.forward(exec, {.q = zero, .k = zero, .v = zero, .out = out, .lse = lse});
    exec.fence("the example reads the results");
    require(std::abs(std::exp(lse(0, 0, 0)) - 100) < 1e-2, "not all 100 keys were seen");
  });
}
