#include "options/problem.hpp"

#include <fmt/format.h>

#include "options/checks.hpp"

namespace annulus::options {

void add_problem(SharedOptions& options, ProblemOptions& problem) {
  options.add(Shared::tokens, problem.tokens);
  options.add(Shared::heads, problem.heads);
  options.add(Shared::kv_heads, problem.kv_heads);
  options.add(Shared::head_dim, problem.head_dim);
  options.add(Shared::v_head_dim, problem.v_head_dim);
  options.add(Shared::batch, problem.batch);
  options.add(Shared::dtype, problem.dtype);
  options.add(Shared::mask, problem.mask);
}

plan::Problem shape_of(const ProblemOptions& o) {
  plan::Problem problem;
  problem.heads = o.heads;
  problem.kv_heads = checked_kv_heads(o.heads, o.kv_heads);
  problem.head_dim = o.head_dim;
  problem.v_head_dim = o.v_head_dim == o.head_dim ? 0 : o.v_head_dim;
  problem.batch = o.batch;
  problem.dtype = parse_storage(o.dtype);
  return problem;
}

plan::Problem problem_of(const ProblemOptions& o) {
  plan::Problem problem = shape_of(o);
  problem.mask = Mask::parse(o.mask, o.tokens, "--mask");
  return problem;
}

namespace {

/// The text of a mask as it was parsed, but for long lists of documents.
std::string text_of(const Mask& mask) {
  constexpr std::size_t most_documents = 20;
  const std::size_t starts = mask.document_starts().size();  // and the end
  if (starts <= most_documents) return mask.to_string();
  return fmt::format("{} ({} documents)", mask.outline(), starts - 1);
}

}  // namespace

std::string text_of(const plan::Problem& p) {
  return fmt::format("{} tokens, {} heads ({} kv) of {}, batch {}, {}, mask {}", p.mask.tokens(), p.heads,
                     p.kv_heads, p.text_of_head_dims(), p.batch, name_of(p.dtype), text_of(p.mask));
}

}  // namespace annulus::options
