// Plans and runs causal ring attention on one rank, with nothing but the installed package.
#include <Kokkos_Core.hpp>
#include <cmath>
#include <cstdio>

#include <annulus/base/version.hpp>
#include <annulus/comm/null.hpp>
#include <annulus/distributed/attention.hpp>
#include <annulus/plan/schedules.hpp>
#include <annulus/plan/validate.hpp>

int main(int argc, char** argv) {
  using namespace annulus;
  Kokkos::ScopeGuard kokkos(argc, argv);
  const HostExec exec;
  const int tokens = 64, head_dim = 16;

  plan::Problem problem;
  problem.mask = Mask::parse("causal", tokens);
  problem.head_dim = head_dim;
  const plan::Plan forward = plan::make_plan("ring", problem, plan::Pass::forward);
  const plan::Plan backward = plan::make_plan("ring", problem, plan::Pass::backward);
  plan::validate(forward);

  const auto communicator = comm::make_null();
  distributed::Attention<HostExec, float> attention(exec, *communicator, forward, backward);
  Array4<float, HostExec> q("q", 1, 1, tokens, head_dim), k("k", 1, 1, tokens, head_dim),
      v("v", 1, 1, tokens, head_dim);
  Array4<float, HostExec> out("out", 1, 1, tokens, head_dim);
  Array3<float, HostExec> lse("lse", 1, 1, tokens);
  Kokkos::deep_copy(v, 3.0f);
  attention.forward(exec, {.q = q, .k = k, .v = v, .scale = 0.25f, .out = out, .lse = lse});

  // Equal scores: every row is the mean of equal values, and LSE is the logarithm of the number of keys.
  const bool right = std::abs(out(0, 0, tokens - 1, 0) - 3.0f) < 1e-5f &&
                     std::abs(lse(0, 0, tokens - 1) - std::log(float(tokens))) < 1e-5f;
  std::printf("Annulus %s: %s\n", version().data(), right ? "right" : "wrong");
  return right ? 0 : 1;
}
