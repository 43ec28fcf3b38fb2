#include "distributed/agreement.hpp"

#include <fmt/format.h>

#include <string>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/base/fingerprint.hpp>
#include <annulus/core/tensor.hpp>

namespace annulus::distributed {

namespace {

constexpr std::string_view remedy = "give every rank the same configuration and data";

/// One side of a message as the other side sees it too: home and landing places differ, the data does not.
void add(Fingerprint& fingerprint, const Message& message) {
  const plan::Piece& piece = message.piece;
  for (const std::int64_t number :
       {static_cast<std::int64_t>(piece.tensor), static_cast<std::int64_t>(piece.owner), piece.rows.begin,
        piece.rows.end, static_cast<std::int64_t>(piece.heads.begin),
        static_cast<std::int64_t>(piece.heads.end), static_cast<std::int64_t>(message.wire),
        static_cast<std::int64_t>(message.bytes)}) {
    fingerprint.add(static_cast<std::uint64_t>(number));
  }
}

}  // namespace

comm::Facts facts_of(const plan::Problem& p) {
  comm::Facts facts;
  const auto list = [](std::span<const std::int64_t> numbers, std::uint64_t fingerprint) {
    return numbers.empty() ? std::string("none")
                           : fmt::format("{} of them, fingerprint {:016x}", numbers.size(), fingerprint);
  };
  facts.add("the nodes of the ranks", p.topology.to_string(), remedy);
  facts.add("the context groups", fmt::format("of {}, {}", p.grid.heads, name_of(p.grid.placement)), remedy);
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

void require_matching(comm::Communicator& communicator, const Program& program) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  std::vector<Fingerprint> sends(ranks), receives(ranks);
  std::vector<std::uint64_t> sent(ranks), announced(ranks);
  for (int channel = 0; channel < plan::channel_count; ++channel) {
    for (auto& fingerprint : sends) fingerprint.add(static_cast<std::uint64_t>(channel));
    for (auto& fingerprint : receives) fingerprint.add(static_cast<std::uint64_t>(channel));
    for (const Exchange& exchange : program.exchanges) {
      if (static_cast<int>(exchange.channel) != channel) continue;
      for (const Message& m : exchange.sends) add(sends[static_cast<std::size_t>(m.peer)], m);
      for (const Message& m : exchange.receives) add(receives[static_cast<std::size_t>(m.peer)], m);
    }
  }
  for (std::size_t r = 0; r < ranks; ++r) sent[r] = sends[r].value();
  communicator.all_to_all(HostExec(), sent.data(), announced.data(), sizeof(std::uint64_t));
  std::string problem;
  for (std::size_t r = 0; r < ranks && problem.empty(); ++r) {
    if (announced[r] != receives[r].value()) {
      problem = fmt::format(
          "the plans of the {} pass do not fit together: what rank {} sends is not what rank {} expects; "
          "validate the plan "
          "(annulus::plan::validate)",
          plan::name_of(program.pass), r, communicator.rank());
    }
  }
  comm::throw_together(communicator, problem);
}

}  // namespace annulus::distributed
