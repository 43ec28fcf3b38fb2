#include "plan/summary.hpp"

#include <fmt/format.h>

#include <algorithm>

#include <annulus/base/units.hpp>

namespace annulus::planner {

Summary summarize(const simulate::Simulation& simulation) {
  Summary s;
  s.time = simulation.time;
  s.imbalance = simulation.imbalance;
  for (const simulate::RankSummary& rank : simulation.ranks) {
    s.exposed = std::max(s.exposed, rank.exposed_communication);
    s.exposed_mean += rank.exposed_communication / static_cast<double>(simulation.ranks.size());
    s.intra_bytes += sum(rank.sent, simulate::LinkClass::intra_node);
    s.inter_bytes += sum(rank.sent, simulate::LinkClass::inter_node);
    s.buffer_bytes = std::max(s.buffer_bytes, rank.buffer_bytes);
  }
  return s;
}

std::string describe(const plan::Plan& plan) {
  const plan::Problem& p = plan.problem;
  return fmt::format("{} tokens, {} heads ({} kv) of {}, batch {}, {}, layout {}, mask {}", p.mask.tokens(),
                     p.heads, p.kv_heads, p.head_dim, p.batch, name_of(p.activation), p.layout.to_string(),
                     p.mask.to_string());
}

std::vector<std::pair<std::string, std::string>> facts(const Summary& s) {
  return {{"time", fmt::format("{:.3f} ms", s.time * 1e3)},
          {"exposed communication", fmt::format("at most {:.3f} ms, mean over ranks {:.3f} ms",
                                                s.exposed * 1e3, s.exposed_mean * 1e3)},
          {"sent inside nodes", bytes_text(s.intra_bytes)},
          {"sent between nodes", bytes_text(s.inter_bytes)},
          {"imbalance degree",
           fmt::format("{:.3f} of ranks, {:.3f} of plan steps", s.imbalance.worker, s.imbalance.step)},
          {"exchange buffers", fmt::format("at most {} per rank", bytes_text(s.buffer_bytes))}};
}

}  // namespace annulus::planner
