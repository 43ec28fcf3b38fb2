#include "prediction/step/layer_time.hpp"

#include <algorithm>
#include <utility>

#include <annulus/prediction/simulator/simulate.hpp>

namespace annulus::prediction {

namespace {

AttentionTime time_of(const simulator::Simulation& simulation) {
  AttentionTime time;
  for (const simulator::RankSummary& rank : simulation.ranks)
    time.computing = std::max(time.computing, rank.computing);
  time.exposed_communication = std::max(0.0, simulation.time - time.computing);
  return time;
}

std::vector<double> numbers_of(const simulator::SideTraffic& traffic) {
  std::vector<double> numbers;
  for (const simulator::SideQueue& queue : traffic.queues) {
    numbers.push_back(static_cast<double>(queue.size()));
    for (const simulator::SideFlow& flow : queue)
      numbers.insert(numbers.end(), {static_cast<double>(flow.way), flow.bytes, flow.rate,
                                     static_cast<double>(flow.messages)});
  }
  return numbers;
}

}  // namespace

LayerAttention::LayerAttention(const executor::Plans& plans, int times, const simulator::Cluster& cluster,
                               bool overlap, simulator::Selected selected)
    : times_(times), cluster_(cluster), selected_(std::move(selected)) {
  const auto keep = [&](AttentionPass pass, const plan::Plan& plan) {
    const auto index = static_cast<std::size_t>(pass);
    const plan::Plan& kept = plans_[index].emplace(overlap ? plan : simulator::without_overlap(plan));
    alone_[index].add(time_of(simulator::simulate(kept, cluster_, simulator::Detail::times,
                                                  plan::RankSubset::automatic, selected_)),
                      times);
  };
  keep(AttentionPass::forward, plans.forward);
  if (plans.backward) keep(AttentionPass::backward, *plans.backward);
  if (plans.recompute) keep(AttentionPass::recompute, *plans.recompute);
}

AttentionTime LayerAttention::beside(AttentionPass pass, simulator::SideTraffic& traffic) const {
  if (traffic.empty()) return alone(pass);
  const auto [known, is_new] = beside_.try_emplace({pass, numbers_of(traffic)});
  auto& [time, left] = known->second;
  if (is_new) {
    left = traffic;
    const std::optional<plan::Plan>& plan = plans_[static_cast<std::size_t>(pass)];
    int run = 0;
    for (; plan && run < times_ && !left.empty(); ++run) {
      simulator::PlanBeside made = simulator::simulate_beside(*plan, cluster_, selected_, left);
      time.add(time_of(made.simulation));
      left = std::move(made.left);
    }
    time.add(alone(pass), static_cast<double>(times_ - run) / times_);
  }
  traffic = left;
  return time;
}

LayerWaits layer_waits(const LayerAttention& attention, std::span<const LayerPart> parts,
                       LayerTraffic& beside, bool awaits_sharding) {
  const simulator::Cluster& cluster = attention.cluster();
  LayerWaits waits;
  simulator::SideTraffic traffic{{std::move(beside.sharding), std::move(beside.copies)}};
  for (const LayerPart& part : parts) {
    if (!traffic.empty()) traffic = simulator::advance(traffic, cluster, part.seconds).left;
    if (part.attention)
      waits.communication += attention.beside(*part.attention, traffic).exposed_communication;
  }
  if (!traffic.empty()) {
    const std::vector<double> ended = simulator::advance(traffic, cluster).ended;
    waits.sharding = awaits_sharding ? ended[0] : 0;
    waits.copies = std::max(0.0, ended[1] - waits.sharding);
    traffic = simulator::advance(traffic, cluster, waits.sharding + waits.copies).left;
  }
  beside = {std::move(traffic.queues[0]), std::move(traffic.queues[1])};
  return waits;
}

}  // namespace annulus::prediction
