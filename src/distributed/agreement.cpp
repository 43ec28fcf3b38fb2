#include "distributed/agreement.hpp"

#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>

#include <annulus/base/error.hpp>

namespace annulus::distributed {

namespace {

constexpr std::string_view remedy = "give every rank the same configuration and data";

}  // namespace

comm::Facts facts_of(const plan::Problem& p) {
  comm::Facts facts;
  const auto list = [](std::span<const std::int64_t> numbers, std::uint64_t fingerprint) {
    return numbers.empty() ? std::string("none")
                           : fmt::format("{} of them, fingerprint {:016x}", numbers.size(), fingerprint);
  };
  facts.add("the nodes of the ranks", p.topology.to_string(), remedy);
  facts.add("the Ulysses groups", fmt::format("of {}, {}", p.grid.ulysses_degree, name_of(p.grid.placement)),
            remedy);
  facts.add("the layout", p.layout.to_string(), remedy);
  facts.add("the sequence length", p.mask.tokens(), remedy);
  facts.add("the mask", p.mask.outline(), remedy);
  facts.add("the mask's document starts", list(p.mask.document_starts(), p.mask.documents_fingerprint()),
            remedy);
  facts.add("the mask's blocks", list(p.mask.block_columns(), p.mask.blocks_fingerprint()), remedy);
  facts.add("the query heads", p.heads, remedy);
  facts.add("the kv heads", p.kv_heads, remedy);
  facts.add("head_dim", p.head_dim, remedy);
  facts.add("the batch", p.batch, remedy);
  facts.add("the type of activations", name_of(p.activation), remedy);
  return facts;
}

comm::Facts facts_of(const plan::Plan& forward, const plan::Plan& backward) {
  comm::Facts facts;
  for (const plan::Plan* const plan : {&forward, &backward})
    facts.add(fmt::format("the plan of the {} pass", name_of(plan->pass)),
              fmt::format("{} in {} steps", plan->schedule, plan->steps), remedy);
  facts.add(facts_of(forward.problem));
  return facts;
}

void require_one_problem(const plan::Plan& forward, const plan::Plan& backward) {
  const comm::Facts a = facts_of(forward.problem), b = facts_of(backward.problem);
  for (std::size_t i = 0; i < a.all().size(); ++i)
    require(a.all()[i].value == b.all()[i].value,
            "the forward and the backward plan solve different problems: {} is {} and {}", a.all()[i].key,
            a.all()[i].value, b.all()[i].value);
}

}  // namespace annulus::distributed
