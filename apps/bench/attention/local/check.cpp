#include "bench/attention/local/check.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include <annulus/base/error.hpp>
#include <annulus/comm/null.hpp>

#include "bench/attention/check/sampled_check.hpp"
#include "bench/attention/check/verify.hpp"

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
  small.batch = 1;
  small.kv_heads = std::min(problem.kv_heads, 2);
  small.heads = small.kv_heads * problem.group();
  LocalPasses<T> passes(small, seed, kernel);
  passes.forward();
  passes.backward();
  const auto global = [&](const auto& view, int heads, int width) {
    return GlobalTensor{small.batch, heads, small.mask.tokens(), width, to_floats(view)};
  };
  const int d = small.head_dim;
  const HostTensors<T> t = passes.tensors();
  return compare(small.mask.rule(), passes.scale(), tolerance(dtype_of<T>),
                 {{Tensor::q, global(t.q, small.heads, d)},
                  {Tensor::k, global(t.k, small.kv_heads, d)},
                  {Tensor::v, global(t.v, small.kv_heads, d)},
                  {Tensor::d_o, global(t.d_out, small.heads, d)},
                  {Tensor::o, global(t.out, small.heads, d)},
                  {Tensor::lse, global(t.lse, small.heads, 1)},
                  {Tensor::dq, global(t.dq, small.heads, d)},
                  {Tensor::dk, global(t.dk, small.kv_heads, d)},
                  {Tensor::dv, global(t.dv, small.kv_heads, d)}})
      .errors;
}

}  // namespace

void require_small(const std::map<std::string, double>& errors, const std::string& what, double limit) {
  for (const auto& [name, error] : errors) {
    require(error <= limit,
            "--local: {} of {} differs by a relative error of {:.2e}, more than {:.0e}: the kernel is wrong, "
            "so it is not timed; try --kernel portable and report this",
            name, what, error, limit);
  }
}

template <class T>
nlohmann::json check_local(LocalPasses<T>& passes, std::uint64_t seed, attention::Kernel kernel) {
  const double limit = tolerance(dtype_of<T>);
  const auto small = check_small<T>(passes.problem(), seed, kernel);
  require_small(small, "a short sequence, beside double precision,", limit);
  passes.forward();
  passes.backward();
  const auto samples =
      sampled_errors<T>(*comm::make_null(), passes.problem(), passes.scale(), passes.tensors(), true);
  require_small(samples, "sampled rows, beside double precision,", limit);
  return {{"tolerance", limit},
          {"short_sequence",
           {{"tokens", std::min(small_tokens, passes.problem().mask.tokens())}, {"errors", small}}},
          {"sampled_rows", {{"of_a_head", sampled_rows_of(passes.positions().count)}, {"errors", samples}}}};
}

template nlohmann::json check_local(LocalPasses<float>&, std::uint64_t, attention::Kernel);
template nlohmann::json check_local(LocalPasses<bfloat16>&, std::uint64_t, attention::Kernel);
template nlohmann::json check_local(LocalPasses<float16>&, std::uint64_t, attention::Kernel);

}  // namespace annulus::bench
