#include "options/problem.hpp"

#include <fmt/format.h>

#include "options/checks.hpp"

namespace annulus::options {

void add_problem(SharedOptions& options, ProblemOptions& problem) {
  options.add(Shared::tokens, problem.tokens);
  options.add(Shared::heads, problem.heads);
  options.add(Shared::kv_heads, problem.kv_heads);
  options.add(Shared::head_dim, problem.head_dim);
  options.add(Shared::batch, problem.batch);
  options.add(Shared::dtype, problem.dtype);
  options.add(Shared::mask, problem.mask);
}

plan::Problem shape_of(const ProblemOptions& o) {
  plan::Problem problem;
  problem.heads = o.heads;
  problem.kv_heads = checked_kv_heads(o.heads, o.kv_heads);
  problem.head_dim = o.head_dim;
  problem.batch = o.batch;
  problem.dtype = parse_storage(o.dtype);
  return problem;
}

plan::Problem problem_of(const ProblemOptions& o) {
  plan::Problem problem = shape_of(o);
  problem.mask = Mask::parse(o.mask, o.tokens, "--mask");
  return problem;
}

std::string text_of(const plan::Problem& p) {
  return fmt::format("{} tokens, {} heads ({} kv) of {}, batch {}, {}, mask {}", p.mask.tokens(), p.heads,
                     p.kv_heads, p.head_dim, p.batch, name_of(p.dtype), p.mask.to_string());
}

}  // namespace annulus::options
