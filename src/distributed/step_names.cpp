#include "distributed/step_names.hpp"

#include <fmt/format.h>

#include <vector>

#include "distributed/program.hpp"

namespace annulus::distributed {

namespace {

/// "k, v of shard 2 from rank 1; dq of shard 0 to rank 3".
std::string name_messages(const Program& program, const std::vector<int>& exchanges) {
  std::string text;
  const auto add = [&](const std::vector<Message>& messages, const char* direction) {
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const Message& m = messages[i];
      const bool joins = i + 1 < messages.size() && messages[i + 1].slice.owner == m.slice.owner &&
                         messages[i + 1].peer == m.peer;
      text += plan::name_of(m.slice.tensor);
      text += joins ? std::string(", ")
                    : fmt::format(" of shard {} {} rank {}; ", m.slice.owner, direction, m.peer);
    }
  };
  for (const int e : exchanges) {
    const Exchange& exchange = program.exchanges[static_cast<std::size_t>(e)];
    add(exchange.receives, "from");
    add(exchange.sends, "to");
  }
  if (!text.empty()) text.resize(text.size() - 2);
  return text;
}

std::string name_computes(const plan::Step& step) {
  std::string text;
  constexpr std::size_t named = 4;
  for (std::size_t i = 0; i < step.computes.size() && i < named; ++i) {
    text += fmt::format("{}q of shard {} with k, v of shard {}", i == 0 ? "" : "; ", step.computes[i].q_shard,
                        step.computes[i].kv_shard);
  }
  if (step.computes.size() > named) text += fmt::format("; {} more", step.computes.size() - named);
  return text;
}

}  // namespace

StepNames name_step(const Program& program, const ProgramStep& step, int number, const plan::Step& planned) {
  const std::string name =
      fmt::format("{} {} step {}", program.plan.schedule, program.plan.pass_text(), number);
  return {name, fmt::format("{}: wait for {}", name, name_messages(program, step.waits)),
          fmt::format("{}: post {}", name, name_messages(program, step.posts)),
          fmt::format("{}: compute {}", name, name_computes(planned))};
}

}  // namespace annulus::distributed
