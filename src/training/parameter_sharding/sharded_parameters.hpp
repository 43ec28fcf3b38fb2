#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/execution/stopwatch.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "training/model/backward_memory.hpp"
#include "training/model/parameter_access.hpp"
#include "training/optimizer/clip.hpp"
#include "training/optimizer/master_weights.hpp"
#include "training/optimizer/non_finite.hpp"
#include "training/parameter_sharding/muon_shards.hpp"
#include "training/parameter_sharding/state_arrays.hpp"
#include "training/parameter_sharding/unit_schedule.hpp"

namespace annulus::parameter_sharding {

/// What a rank holds only its shard of (Rajbhandari et al., ZeRO; BurstEngine, section 4.1). Each stage
/// includes those before it. Bytes of a rank for N parameters on P ranks with bf16 weights and fp32 masters,
/// gradients and moments, without padding; U is the number of parameters of the largest unit:
///
///   none                     18 N
///   optimizer                 6 N + 16 N / P +  4 U   weights and gradients are whole
///   gradients                 2 N + 16 N / P + 12 U   weights are whole
///   parameters                      16 N / P + 16 U
///
/// The terms in U come and go: a gradient that is added to (4 U), one that is reduced (4 U) with what the
/// other ranks contribute to it (4 U), weights in use and those of the next unit (2 U each). Offloaded
/// masters and moments (optimizer::MasterWeights) take 12 N / P from it, and leave the weights of the shard,
/// 2 N / P, in stage `parameters`. Gradients that stay until the update (UnitArrays::held) may share memory
/// with what layers keep (Options::backward).
enum class Stage : int { optimizer = 1, gradients = 2, parameters = 3 };

/// The parameters of a run over the ranks of a communicator, as the model asks for them. Weights of the next
/// unit are gathered while this one computes, and the gradient of the last one is reduced meanwhile.
///
/// Gradients are summed in rank order (Options::sums), and every element of the optimizer's state is computed
/// by one rank from the same numbers: with one sequence per optimizer step, parameters and moments are the
/// bits that replicas of the whole would hold. With several, the stages from `gradients` on reduce each
/// sequence by itself, which rounds differently.
template <class Exec, class T>
class ShardedParameters final : public model::ParameterAccess<Exec, T> {
 public:
  struct Options {
    Stage stage = Stage::parameters;
    optimizer::MasterOptions masters = {};
    Updates updates = {};
    int channel = 0;                           ///< of `ranks`, used by nothing else
    comm::Sums sums = comm::Sums::rank_order;  ///< of gradients
    /// Ranks of other groups that hold copies of this rank's shard (hybrid sharding): gradients are summed
    /// over them, too, after the sum over `ranks`. Null: there are none.
    comm::Communicator* replicas = nullptr;
    /// For UnitArrays::held, shared with what layers keep; null: of its own.
    std::shared_ptr<model::BackwardMemory<Exec>> backward = nullptr;
  };
  /// `ranks`, `map` and `replicas` outlive this.
  ShardedParameters(const Exec& exec, comm::Communicator& ranks, const model::ParameterMap& map,
                    const Options& options);
  ~ShardedParameters() override;

  const Partition& partition() const { return partition_; }

  /// Initial parameters, those of model::initialize. Collective.
  void initialize(const Exec& exec, std::uint64_t seed);

  Array1<const T, Exec> weights(const Exec& exec, int unit, int next) override;
  void release_weights(const Exec& exec, int unit) override;
  model::UnitGradient<Exec> gradients(const Exec& exec, int unit) override;
  void finish_gradients(const Exec& exec, int unit) override;

  /// An optimizer step, collective: forget_gradients, then sequences through the model, then
  /// reduce_gradients, measure and update.
  void forget_gradients(const Exec& exec);
  /// Completes the sums over ranks.
  void reduce_gradients(const Exec& exec);
  /// Element of this rank's gradients before they were summed over ranks, since forget_gradients
  /// (NonFinite::last).
  std::int64_t non_finite(const Exec& exec) const { return non_finite_.last(exec); }
  /// The norm of the whole gradient.
  optimizer::Clipping measure(const Exec& exec, optimizer::GradientClipper<Exec>& clipper);
  void update(const Exec& exec, double learning_rate, float gradient_scale);

  /// This rank's shards (partition().shard_size()); whoever writes to masters and moments calls restored.
  const optimizer::MasterWeights<Exec, T>& master_shard() const { return masters_; }
  /// MasterWeights::set_gate of the shard.
  void set_gate(typename optimizer::MasterWeights<Exec, T>::Gate gate) { masters_.set_gate(std::move(gate)); }
  /// The master shard has been written to, that of replicas alike. Collective.
  void restored(const Exec& exec, std::int64_t steps);

  /// Seconds since reset_times for which compute waited for weights and for sums of gradients.
  double exposed_seconds() { return waiting_.seconds(); }
  void reset_times() { waiting_.reset(); }

  /// The weights that every rank holds whole (stages `optimizer` and `gradients`): each unit at its
  /// Partition::padded_offset. Waits for those under way. Without elements in stage `parameters`.
  const Array1<T, Exec>& whole_weights(const Exec& exec);

  /// The masters, or the gradients, of one unit: on rank 0 (padded_size(unit)), on the others nothing.
  /// Collective.
  Owned<Array1<float, Exec>> masters_at_root(const Exec& exec, int unit);
  Owned<Array1<float, Exec>> gradients_at_root(const Exec& exec, int unit);

 private:
  template <class V>
  using Buffer = Owned<Array1<V, Exec>>;
  using WeightPart = typename optimizer::MasterWeights<Exec, T>::WeightPart;
  /// Weights of a unit, (padded_size(unit)): on their way, or there.
  struct Gathered {
    Buffer<T> elements;
    comm::Request request;
  };
  /// A gradient whose parts are on their way to their owners.
  struct Reduction {
    Buffer<float> elements;  // (padded_size(unit)), where the stage keeps no whole gradients
    comm::Request request;
  };

  bool holds_weights() const { return options_.stage < Stage::parameters; }
  bool holds_gradients() const { return options_.stage < Stage::gradients; }
  template <class V>
  static Array1<V, Exec> slice(const Array1<V, Exec>& of, std::int64_t begin, std::int64_t size) {
    return Array1<V, Exec>(of.data() + begin, size);
  }

  /// Where offloaded masters leave this rank's part of a unit's weights, (part_size(unit)).
  Array1<T, Exec> own_weights(int unit) const;
  /// This rank's parts of the weights of all units where offloaded masters leave them, free to be written;
  /// none where masters are not offloaded.
  std::vector<WeightPart> own_parts(const Exec& exec);
  void round_own_weights(const Exec& exec);
  Owned<Array1<float, Exec>> gather_at_root(const Exec& exec, int unit, const Array1<float, Exec>& part);
  std::string gather_text(int unit) const;
  std::string reduction_text(int unit) const;
  void start_gather(const Exec& exec, int unit, Gathered& to);
  void wait(const Exec& exec, int unit, Gathered& gathered);
  void gather_all(const Exec& exec);
  /// This rank's shard of the sums over all sequences.
  Array1<float, Exec> shard_of(int unit) const {
    return slice(gradient_, partition_.offset_in_shard(unit), partition_.part_size(unit));
  }
  /// The whole gradient of a unit in stage `optimizer`, (padded_size(unit)).
  Array1<float, Exec> whole_gradient(int unit) const {
    return slice(all_gradients_, partition_.padded_offset(unit), partition_.padded_size(unit));
  }
  /// The gradient of a unit of which the sum is under way.
  Array1<float, Exec> summed(int unit) const {
    return holds_gradients() ? whole_gradient(unit) : *pending_.elements;
  }
  /// Whether a gradient begins with them, which holds nothing yet.
  bool carry_out(const Exec& exec, std::span<const UnitStep> steps);
  /// Where the sum over ranks of a unit's `elements` goes: the first one since forget_gradients into the
  /// shard, others to this rank's part of the elements.
  Array1<float, Exec> sum_of(int unit, const Array1<float, Exec>& elements) const;
  void start_reduction(const Exec& exec, int unit);
  void complete_reduction(const Exec& exec, int unit);

  comm::Communicator& ranks_;
  const model::ParameterMap& map_;
  Options options_;
  StateLayout layout_;
  Partition partition_;
  optimizer::NormBlocks<Exec> norm_blocks_;
  optimizer::MasterWeights<Exec, T> masters_;  // (shard_size)
  std::shared_ptr<model::BackwardMemory<Exec>> backward_;
  std::optional<MuonShards<Exec>> muon_;
  Array1<float, Exec> gradient_;  // (shard_size)
  optimizer::NonFinite<Exec> non_finite_;
  Buffer<T> weights_;  // of state_arrays: (padded_size()), or (shard_size) of offloaded masters
  Array1<float, Exec> all_gradients_;          // (padded_size()), where the stage keeps them
  std::vector<Gathered> gathered_;             // of each unit
  std::vector<Buffer<float>> unit_gradients_;  // of each unit, while it is added to
  std::vector<bool> reduced_;                  // units whose shard holds sums of earlier sequences
  Reduction pending_;
  UnitSchedule schedule_;
  Stopwatch<Exec> waiting_;  // for gathers and reductions
};

}  // namespace annulus::parameter_sharding
