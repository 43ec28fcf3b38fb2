#include <algorithm>
#include <vector>

#include <annulus/training/parameter_sharding/state_memory.hpp>

#include "attention/comm/point_to_point.hpp"
#include "attention/comm/routes.hpp"
#include "training/optimizer/clip.hpp"
#include "training/parameter_sharding/memory_bytes.hpp"
#include "training/parameter_sharding/partition.hpp"
#include "training/parameter_sharding/sharded_parameters.hpp"

namespace annulus::parameter_sharding {

namespace {

/// Goes through calls as ShardedParameters does, with sizes in the place of memory.
class Rehearsal {
 public:
  Rehearsal(const model::ParameterMap& map, const StateLayout& layout, const SumsLayout& sums)
      : layout_(layout),
        sums_(sums),
        partition_(map.units(), layout.ranks, optimizer::NormBlocks<HostExec>::size),
        held_gradients_(held_gradients(map, layout, 1)),
        holds_(held_gradients_.size()),
        gathered_(map.units().size()),
        gradients_(map.units().size()) {}

  /// Bytes of the gradients that are held.
  std::int64_t held_bytes() const { return fp32_bytes * held_elements_; }

  /// The most that is held during the call.
  MemoryBytes call(const model::UnitCall& call) {
    MemoryBytes most = held();
    using Kind = model::UnitCall::Kind;
    switch (call.kind) {
      case Kind::weights:
        gather(call.unit);
        ++gathered_[index(call.unit)].users;
        if (call.next >= 0) gather(call.next);
        break;
      case Kind::release_weights:
        if (--gathered_[index(call.unit)].users == 0) set_gathered(call.unit, false);
        break;
      case Kind::gradients:
        set_gradient(call.unit, holds_units());
        if (!holds_units()) hold(call.unit);
        break;
      case Kind::finish_gradients:
        if (!holds_units()) break;
        complete();
        if (layout_.native_sums) hold(call.unit);
        set_gradient(call.unit, false);
        reduced_ = call.unit;
        break;
    }
    take_most(most, held());
    return most;
  }

  /// Sums behind the last pass: of all units, one after the other.
  MemoryBytes sums() {
    complete();
    MemoryBytes most{};
    for (int unit = 0; stage() == Stage::optimizer && unit < partition_.units(); ++unit)
      at(most, MemoryCategory::workspace) = std::max(at(most, MemoryCategory::workspace), contributed(unit));
    return most;
  }

 private:
  struct Gathered {
    bool there = false;
    int users = 0;
  };
  static std::size_t index(int unit) { return static_cast<std::size_t>(unit); }
  Stage stage() const { return static_cast<Stage>(layout_.stage); }
  bool holds_units() const { return stage() >= Stage::gradients; }
  /// The sum under way.
  void complete() {
    if (reduced_ >= 0) hold(reduced_);
    reduced_ = -1;
  }
  void hold(int unit) {
    const std::size_t i = index(held_gradient(layout_, unit));
    if (!holds_[i]) held_elements_ += held_gradients_[i].elements;
    holds_[i] = true;
  }
  void gather(int unit) { set_gathered(unit, stage() == Stage::parameters); }
  // Sums are kept up to date: to make them anew in each call takes minutes for thousands of layers.
  void set_gathered(int unit, bool there) {
    Gathered& gathered = gathered_[index(unit)];
    padded_weights_ += (int{there} - int{gathered.there}) * partition_.padded_size(unit);
    gathered.there = there;
  }
  void set_gradient(int unit, bool there) {
    padded_gradients_ += (int{there} - int{gradients_[index(unit)]}) * partition_.padded_size(unit);
    gradients_[index(unit)] = there;
  }
  std::int64_t contributed(int unit) const {
    const std::int64_t part = fp32_bytes * partition_.part_size(unit);
    if (!layout_.native_sums)
      return static_cast<std::int64_t>(comm::contribution_blocks(sums_.topology)) * part;
    return sums_.on_host ? part : 0;
  }
  MemoryBytes held() const {
    MemoryBytes bytes{};
    at(bytes, MemoryCategory::parameters) =
        static_cast<std::int64_t>(size_of(layout_.weights)) * padded_weights_;
    at(bytes, MemoryCategory::gradients) = fp32_bytes * padded_gradients_;
    if (reduced_ >= 0) {
      at(bytes, MemoryCategory::gradients) += fp32_bytes * partition_.padded_size(reduced_);
      at(bytes, MemoryCategory::workspace) += contributed(reduced_);
    }
    return bytes;
  }

  const StateLayout& layout_;
  const SumsLayout& sums_;
  Partition partition_;
  std::vector<model::HeldGradient> held_gradients_;
  std::vector<bool> holds_;
  std::vector<Gathered> gathered_;
  std::vector<bool> gradients_;
  std::int64_t held_elements_ = 0, padded_weights_ = 0, padded_gradients_ = 0;
  int reduced_ = -1;  // unit whose gradient is on its way
};

}  // namespace

PassingMemory passing_memory(const model::ParameterMap& map, const StateLayout& layout,
                             const SumsLayout& sums, std::span<const model::UnitCall> calls,
                             std::int64_t passes) {
  PassingMemory memory;
  if (layout.stage == 0) {
    // All ranks sum everything at once, through memory that the communicator keeps.
    if (!layout.native_sums)
      at(memory.kept, MemoryCategory::communication) = static_cast<std::int64_t>(comm::all_reduce_space(
          sums.topology, sums.on_host, static_cast<std::size_t>(map.size()), sizeof(float)));
  }
  Rehearsal rehearsal(map, layout, sums);
  // A pass begins while the sum of the last unit of the one before is still on its way.
  if (passes > 1)
    for (const model::UnitCall& call : calls) rehearsal.call(call);
  for (const model::UnitCall& call : calls) {
    memory.calls.push_back(rehearsal.call(call));
    memory.held.push_back(rehearsal.held_bytes());
  }
  memory.sums = rehearsal.sums();
  return memory;
}

}  // namespace annulus::parameter_sharding
