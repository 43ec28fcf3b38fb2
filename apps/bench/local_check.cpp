#include "bench/local_check.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include <annulus/base/error.hpp>
#include <annulus/comm/null.hpp>

#include "bench/sampled_check.hpp"
#include "bench/verify.hpp"

namespace annulus::bench {
namespace {

using plan::Tensor;

constexpr std::int64_t small_tokens = 384;

/// The terms of a mask that have a meaning for any length.
std::string mask_of_any_length(std::string_view text) {
  std::string kept;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('+', begin), text.size());
    const std::string_view term = text.substr(begin, end - begin);
    if (!term.starts_with("documents") && !term.starts_with("blocks")) {
      kept += (kept.empty() ? "" : "+") + std::string(term);
    }
    begin = end + 1;
  }
  return kept.empty() ? "causal" : kept;
}

template <class T>
std::map<std::string, double> check_small(const plan::Problem& problem, std::uint64_t seed,
                                          attention::Kernel kernel) {
  plan::Problem small = problem;
  small.mask = Mask::parse(mask_of_any_length(problem.mask.to_string()),
                           std::min(small_tokens, problem.mask.tokens()));
  LocalPasses<T> passes(small, seed, kernel);
  passes.forward();
  passes.backward();
  const auto global = [&](const auto& view, int heads, int width) {
    return GlobalTensor{small.batch, heads, small.mask.tokens(), width, to_floats(view)};
  };
  const int d = small.head_dim;
  return compare(small, passes.scale(), tolerance(DType::f32),
                 {{Tensor::q, global(passes.q(), small.heads, d)},
                  {Tensor::k, global(passes.k(), small.kv_heads, d)},
                  {Tensor::v, global(passes.v(), small.kv_heads, d)},
                  {Tensor::d_o, global(passes.d_out(), small.heads, d)},
                  {Tensor::o, global(passes.out(), small.heads, d)},
                  {Tensor::lse, global(passes.lse(), small.heads, 1)},
                  {Tensor::dq, global(passes.dq(), small.heads, d)},
                  {Tensor::dk, global(passes.dk(), small.kv_heads, d)},
                  {Tensor::dv, global(passes.dv(), small.kv_heads, d)}})
      .errors;
}

/// Kernels alone, without ranks between them, widen what they read and sum in fp32: the tolerance of fp32
/// serves every storage type.
double limit() {
  return tolerance(DType::f32);
}

void require_small(const std::map<std::string, double>& errors, const char* what) {
  for (const auto& [name, error] : errors) {
    require(error <= limit(),
            "--local: {} of {} differs from double precision by a relative error of {:.2e}, more than "
            "{:.0e}: the kernel is "
            "wrong, so it is not timed; try --kernel portable and report this",
            name, what, error, limit());
  }
}

}  // namespace

template <class T>
nlohmann::json check_local(LocalPasses<T>& passes, std::uint64_t seed, attention::Kernel kernel) {
  const auto small = check_small<T>(passes.problem(), seed, kernel);
  require_small(small, "a short sequence");
  passes.forward();
  passes.backward();
  const auto samples =
      sampled_errors<T>(*comm::make_null(), passes.problem(), passes.scale(), passes.tensors(), true);
  require_small(samples, "sampled rows");
  return {{"tolerance", limit()},
          {"short_sequence",
           {{"tokens", std::min(small_tokens, passes.problem().mask.tokens())}, {"errors", small}}},
          {"sampled_rows", {{"of_a_head", sampled_rows_of(passes.positions().count)}, {"errors", samples}}}};
}

template nlohmann::json check_local(LocalPasses<float>&, std::uint64_t, attention::Kernel);
template nlohmann::json check_local(LocalPasses<bfloat16>&, std::uint64_t, attention::Kernel);
template nlohmann::json check_local(LocalPasses<float16>&, std::uint64_t, attention::Kernel);

}  // namespace annulus::bench
