// Attention on one rank, forward and backward: no MPI, no launcher. Start here.
#include <fmt/format.h>
#include <Kokkos_Core.hpp>

#include <cmath>

#include <annulus/attention.hpp>

int main(int argc, char** argv) {
  using namespace annulus;
  using Exec = HostExec;  // or DeviceExec, whose arrays lie in the GPU's memory
  const Kokkos::ScopeGuard kokkos(argc, argv);
  const Exec exec;
  constexpr int batch = 1, heads = 4, kv_heads = 2, tokens = 64, head_dim = 16;

  // What is to be computed. The topology is one rank where nothing else is said.
  const plan::Problem problem{
      .mask = Mask::parse("causal", tokens), .heads = heads, .kv_heads = kv_heads, .head_dim = head_dim};

  // A schedule becomes a plan for each pass; Attention proves both and allocates what they need, once.
  const auto communicator = comm::make_null();
  executor::Attention<Exec, float> attention(exec, *communicator,
                                             plan::make_plan("ring", problem, plan::Pass::forward),
                                             plan::make_plan("ring", problem, plan::Pass::backward));

  // Every query head of a group reads the same key head. All queries and keys are zero here, so that every
  // row is the mean of the values that it sees.
  Array4<float, Exec> q("q", batch, heads, tokens, head_dim), out("out", batch, heads, tokens, head_dim);
  Array4<float, Exec> k("k", batch, kv_heads, tokens, head_dim), v("v", batch, kv_heads, tokens, head_dim);
  Array3<float, Exec> lse("lse", batch, heads, tokens);  // log of the sum of the exponentials of the scores
  Kokkos::deep_copy(exec, v, 3.0f);
  const float scale = 1.0f / std::sqrt(float(head_dim));
  attention.forward(exec, {.q = q, .k = k, .v = v, .scale = scale, .out = out, .lse = lse});

  // The backward takes forward's lse and D = rowsum(dO∘O), and writes the three gradients.
  Array4<float, Exec> d_out("d_out", batch, heads, tokens, head_dim),
      dq("dq", batch, heads, tokens, head_dim);
  Array4<float, Exec> dk("dk", batch, kv_heads, tokens, head_dim),
      dv("dv", batch, kv_heads, tokens, head_dim);
  Array3<float, Exec> d("d", batch, heads, tokens);
  Kokkos::deep_copy(exec, d_out, 1.0f);
  attention::row_dot<Exec, float>(exec, out, d_out, d);
  attention.backward(exec, {.q = q,
                            .k = k,
                            .v = v,
                            .scale = scale,
                            .lse = lse,
                            .d = d,
                            .d_out = d_out,
                            .dq = dq,
                            .dk = dk,
                            .dv = dv});
  exec.fence("the example reads the results");

  // The last query sees all 64 keys. The last key is seen by that query alone, in the two heads of its group.
  const float last = out(0, 0, tokens - 1, 0), gradient = dv(0, 0, tokens - 1, 0);
  fmt::print("Annulus {}: out {:g}, lse {:g}, dv {:g}\n", version(), last, lse(0, 0, tokens - 1), gradient);
  const bool right = std::abs(last - 3.0f) < 1e-5f && std::abs(gradient - 2.0f / tokens) < 1e-5f &&
                     std::abs(lse(0, 0, tokens - 1) - std::log(float(tokens))) < 1e-5f;
  return right ? 0 : 1;
}
