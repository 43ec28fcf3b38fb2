#include "training/parameter_sharding/unit_schedule.hpp"

#include <algorithm>
#include <utility>

namespace annulus::parameter_sharding {

using Kind = UnitStep::Kind;

// Weights of the next unit are on their way while this one computes.
void UnitSchedule::gather(int unit) {
  if (layout_.stage == 3 && !std::exchange(units_[static_cast<std::size_t>(unit)].weights, true))
    add(Kind::gather, unit);
}

void UnitSchedule::complete() {
  if (summed_ < 0) return;
  add(Kind::hold, summed_);
  add(Kind::complete_sum, std::exchange(summed_, -1));
}

std::span<const UnitStep> UnitSchedule::call(const model::UnitCall& call) {
  using Call = model::UnitCall::Kind;
  steps_.clear();
  Unit& unit = units_[static_cast<std::size_t>(call.unit)];
  const bool whole_gradients = layout_.stage < 2;
  switch (call.kind) {
    case Call::weights:
      gather(call.unit);
      add(Kind::await, call.unit);
      ++unit.users;
      if (call.next >= 0) gather(call.next);
      break;
    case Call::release_weights:
      if (--unit.users == 0 && std::exchange(unit.weights, false)) add(Kind::drop_weights, call.unit);
      break;
    case Call::gradients:
      if (whole_gradients)
        add(Kind::hold, call.unit);
      else if (!std::exchange(unit.gradient, true))
        add(Kind::begin_gradient, call.unit);
      break;
    case Call::finish_gradients:
      if (whole_gradients) break;
      complete();
      // A native sum writes as soon as it begins, one in rank order when it is complete.
      if (layout_.native_sums) add(Kind::hold, call.unit);
      add(Kind::start_sum, call.unit);
      unit.gradient = false;
      summed_ = call.unit;
  }
  return steps_;
}

std::span<const UnitStep> UnitSchedule::end() {
  steps_.clear();
  complete();
  if (layout_.stage == 1) {
    add(Kind::hold, -1);
    for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) {
      add(Kind::start_sum, unit);
      add(Kind::complete_sum, unit);
    }
  }
  return steps_;
}

UnitArrays unit_arrays(const model::Config& config, const StateLayout& layout, std::int64_t passes,
                       std::int64_t contributions) {
  const model::ParameterMap map(config);
  const Partition partition = partition_of(map, layout);
  UnitArrays arrays{.held = held_gradients(map, layout), .passing = {}};
  for (PlannedArray& gradient : arrays.held) gradient.from = passes > 1 ? 0 : gradient.to;

  struct Since {  // behind so many calls; −1: not there
    int weights = -1, gradient = -1, summed = -1, contributed = -1;
  };
  std::vector<Since> since(map.units().size());
  int now = 0;
  bool behind_passes = false;
  const auto end = [&](int& begin, PlannedArray array) {
    array.from = std::exchange(begin, -1);
    array.to = now;
    if (array.from >= 0 && array.from < now) arrays.passing.push_back(array);
  };
  const auto take_down = [&](std::span<const UnitStep> steps) {
    for (const auto& [kind, unit] : steps) {
      if (kind == Kind::hold) {
        int& from = arrays.held[static_cast<std::size_t>(held_gradient(layout, unit))].from;
        from = std::min(from, now);
        continue;
      }
      Since& of = since[static_cast<std::size_t>(unit)];
      if (kind == Kind::gather) of.weights = now;
      if (kind == Kind::drop_weights) end(of.weights, unit_weights(partition, layout, unit));
      if (kind == Kind::begin_gradient) of.gradient = now;
      if (kind == Kind::start_sum) {
        of.summed = std::exchange(of.gradient, -1);
        of.contributed = behind_passes ? now++ : now;  // there each sum has a moment of its own
      }
      if (kind == Kind::complete_sum) {
        end(of.summed, unit_gradient(partition, unit));
        end(of.contributed, {"annulus::comm::contributions", MemoryCategory::workspace,
                             contributions * partition.part_size(unit), sizeof(float)});
      }
    }
  };
  UnitSchedule schedule(layout, partition.units());
  const std::vector<model::PassPart> parts = model::pass_parts(config);
  // A pass begins while the sum of the last unit of the one before is still on its way.
  for (int pass = passes > 1 ? 0 : 1; pass < 2; ++pass)
    for (const model::PassPart& part : parts)
      for (const model::UnitCall& call : part.calls) {
        now += pass;
        take_down(schedule.call(call));
      }
  behind_passes = true;
  ++now;
  take_down(schedule.end());
  return arrays;
}

}  // namespace annulus::parameter_sharding
