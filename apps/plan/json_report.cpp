#include <nlohmann/json.hpp>

#include <fstream>
#include <string>

#include <annulus/base/error.hpp>
#include <annulus/base/version.hpp>

#include "base/config/output_format.hpp"
#include "common/output/cluster_json.hpp"
#include "plan/report.hpp"
#include "training/io/atomic.hpp"
#include "training/io/json.hpp"

namespace annulus::planner {
namespace {

using nlohmann::json;
using simulator::LinkClass;

json config_json(const plan::Plan& plan, const PlanCase& c) {
  const plan::Problem& p = plan.problem;
  json nodes = json::array();
  for (int node = 0; node < p.topology.nodes(); ++node) nodes.push_back(p.topology.ranks_on(node));
  json config = app::to_json(p);
  config.update({{"schedule", plan.schedule},
                 {"pass", name_of(plan.pass)},
                 {"steps", plan.steps},
                 {"ranks_per_node", nodes},
                 {"layout", p.layout.to_string()},
                 {"cluster", app::to_json(c.cluster)},
                 {"cluster_source", c.rates}});
  if (p.positions > 0) config["positions"] = p.positions;
  if (!c.sparsity.selected.all()) config["density"] = c.sparsity.selected.density;
  return config;
}

/// Tensors that travel, each with its bytes inside and between nodes.
json bytes_json(const simulator::BytesByLink& bytes) {
  json all = json::object();
  for (int t = 0; t < plan::tensor_count; ++t) {
    const auto& [intra, inter] = bytes[t];
    if (intra + inter == 0) continue;
    all[std::string(plan::name_of(static_cast<plan::Tensor>(t)))] = {{name_of(LinkClass::intra_node), intra},
                                                                     {name_of(LinkClass::inter_node), inter}};
  }
  return all;
}

json totals_json(const simulator::Simulation& simulation) {
  json totals = json::array();
  for (const simulator::RankSummary& r : simulation.ranks) {
    totals.push_back({{"work", r.pairs},
                      {"sent", bytes_json(r.sent)},
                      {"received", bytes_json(r.received)},
                      {"computing", r.computing},
                      {"exposed_communication", r.exposed_communication},
                      {"buffer_bytes", r.buffer_bytes}});
  }
  return totals;
}

json received_json(const simulator::ReceivedRows& rows) {
  return {{"received", rows.received},
          {"visible", rows.visible},
          {"unneeded", rows.unneeded},
          {"visible_onward", rows.visible_onward},
          {"unneeded_onward", rows.unneeded_onward}};
}

json comparison_json(const std::vector<ComparisonRow>& rows) {
  json all = json::array();
  for (const ComparisonRow& row : rows) {
    const PlanSummary& s = row.summary;
    if (!row.reason.empty()) {
      all.push_back({{"schedule", row.schedule}, {"layout", row.layout}, {"unsupported", row.reason}});
    } else {
      all.push_back({{"schedule", row.schedule},
                     {"layout", row.layout},
                     {"time", s.time},
                     {"exposed_communication", s.exposed},
                     {"intra_node_bytes", s.intra_bytes},
                     {"inter_node_bytes", s.inter_bytes},
                     {"imbalance", {{"worker", s.imbalance.worker}, {"step", s.imbalance.step}}},
                     {"buffer_bytes", s.buffer_bytes}});
    }
  }
  return all;
}

json transfer_json(const plan::Plan& plan, int rank, const plan::Transfer& t, const char* peer) {
  const LinkClass link = simulator::link_between(plan.problem.topology, rank, t.peer);
  return {{"what", name_of(t.slice.tensor)},
          {"of", t.slice.owner},
          {peer, t.peer},
          {"bytes", simulator::bytes_of(plan.problem, t)},
          {"link_class", name_of(link)},
          {"channel", name_of(t.channel)}};
}

json step_json(const plan::Plan& plan, int rank, int index) {
  const plan::Step step = plan.step(rank, index);
  json compute = json::array(), send = json::array(), receive = json::array();
  for (const plan::Compute& c : step.computes) {
    compute.push_back({{"q", c.q_shard},
                       {"kv", c.kv_shard},
                       {"work", simulator::pairs_of(plan.problem, c)},
                       {"heads", {c.heads.begin, c.heads.end}}});
  }
  for (const plan::Transfer& t : step.sends) send.push_back(transfer_json(plan, rank, t, "to"));
  for (const plan::Transfer& t : step.receives) receive.push_back(transfer_json(plan, rank, t, "from"));
  return {{"compute", compute}, {"send", send}, {"recv", receive}};
}

/// The last key of the object, and its end.
void write_steps(std::ofstream& out, const plan::Plan& plan) {
  out << "\"plan\":[";
  for (int rank = 0; rank < plan.problem.ranks(); ++rank) {
    out << (rank == 0 ? "\n[" : ",\n[");
    for (int s = 0; s < plan.steps; ++s) out << (s == 0 ? "\n" : ",\n") << step_json(plan, rank, s).dump();
    out << "]";
  }
  out << "]}\n";
}

}  // namespace

void write_json(const std::filesystem::path& path, const plan::Plan& plan, const PlanCase& c,
                const simulator::Simulation& simulation, const std::optional<simulator::ReceivedKeys>& keys,
                const std::vector<ComparisonRow>& comparison) {
  json head = {{"git_hash", git_hash()},
               {"version", version()},
               {"config", config_json(plan, c)},
               {"time", simulation.time},
               {"imbalance", {{"worker", simulation.imbalance.worker}, {"step", simulation.imbalance.step}}},
               {"totals", totals_json(simulation)}};
  if (c.sparsity.blocks != nullptr) head["column_bytes"] = plan::column_traffic(plan, c.sparsity.columns);
  if (keys)
    head["received_keys"] = {{"of_kv_heads", received_json(keys->of_kv_heads)},
                             {"of_all_heads", received_json(keys->of_all_heads)}};
  head["planning_seconds"] = c.planning_seconds;
  if (!comparison.empty()) head["comparison"] = comparison_json(comparison);
  head["format_version"] = config::output_format_version;
  io::write_atomically(path, [&](const std::filesystem::path& temporary) {
    std::ofstream out(temporary, std::ios::binary);
    std::string text = io::json_text(head, -1);
    if (!c.no_steps) text.back() = ',';  // the plan goes on where the object ended: it is not held in memory
    out << text << '\n';
    if (!c.no_steps) write_steps(out, plan);
    out.flush();
    require(out.good(), "cannot write {}: is the disk full?", path.string());
  });
}

}  // namespace annulus::planner
