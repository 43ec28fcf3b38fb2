#include "training/parameter_sharding/sharded_parameters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "attention/comm/watchdog.hpp"
#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/instantiate.hpp"
#include "base/kokkos/range.hpp"
#include "training/parameter_sharding/flat_ranges.hpp"

namespace annulus::parameter_sharding {

namespace {

constexpr const char* wait_region = "annulus::parameter_sharding::wait";
constexpr std::int64_t norm_block = optimizer::NormBlocks<HostExec>::size;

template <class Exec>
void add(const Exec& exec, const Array1<float, Exec>& to, const Array1<const float, Exec>& more) {
  Kokkos::parallel_for(
      "annulus::parameter_sharding::add",
      ElementRange<Exec>(exec, 0, static_cast<std::int64_t>(to.extent(0))),
      KOKKOS_LAMBDA(const std::int64_t i) { to(i) += more(i); });
}

/// Ranges of a rank's shard, padding included.
std::vector<optimizer::ParameterRange> update_ranges_of_shard(const model::ParameterMap& map,
                                                              const Updates& updates,
                                                              const Partition& partition, int rank) {
  const std::vector<optimizer::ParameterRange> whole = update_ranges(map, updates);
  std::vector<optimizer::ParameterRange> shard;
  for (int unit = 0; unit < partition.units(); ++unit) {
    const model::ParameterUnit part = partition.part(unit, rank);
    const std::int64_t offset = partition.offset_in_shard(unit), end = offset + partition.part_size(unit);
    for (const optimizer::ParameterRange& range : optimizer::ranges_of_shard(whole, part.begin, part.end))
      shard.push_back({offset + range.begin, offset + range.end, range.decay, range.updated});
    if (offset + part.size() < end) shard.push_back({offset + part.size(), end, false});  // padding
  }
  return shard;
}

template <class Exec>
optimizer::NormBlocks<Exec> norm_blocks_of_shard(const Exec& exec, const model::ParameterMap& map,
                                                 const Partition& partition, int rank) {
  const UnitBlocks blocks = unit_blocks(map);
  std::vector<optimizer::NormRange> ranges;
  for (int unit = 0; unit < partition.units(); ++unit) {
    const model::ParameterUnit part = partition.part(unit, rank);
    if (part.size() == 0) continue;  // behind the end of its unit
    const optimizer::NormRange& whole = blocks.ranges[static_cast<std::size_t>(unit)];
    const std::int64_t offset = partition.offset_in_shard(unit);
    ranges.push_back(
        {offset, offset + part.size(), whole.first_block + (part.begin - whole.begin) / norm_block});
  }
  return optimizer::NormBlocks<Exec>(exec, ranges, blocks.count);
}

}  // namespace

template <class Exec, class T>
ShardedParameters<Exec, T>::ShardedParameters(const Exec& exec, comm::Communicator& ranks,
                                              const model::ParameterMap& map, const Options& options)
    : ranks_(ranks),
      map_(map),
      options_(options),
      layout_{.stage = static_cast<int>(options.stage),
              .ranks = ranks.size(),
              .weights = dtype_of<T>,
              .offload = options.masters.offload,
              .native_sums = options.sums == comm::Sums::native},
      partition_(partition_of(map, layout_)),
      norm_blocks_(norm_blocks_of_shard(exec, map, partition_, ranks.rank())),
      masters_(exec, options.masters, partition_.shard_size(),
               update_ranges_of_shard(map, options.updates, partition_, ranks.rank())),
      backward_(options.backward != nullptr ? options.backward
                                            : std::make_shared<model::BackwardMemory<Exec>>(
                                                  exec, ArrayTable(), held_gradients(map, layout_))),
      gradient_(slice(backward_->gradients(), 0, partition_.shard_size())),
      non_finite_(exec),
      gathered_(map.units().size()),
      unit_gradients_(map.units().size()),
      reduced_(map.units().size()),
      schedule_(layout_, partition_.units()) {
  if (options.updates.muon)
    muon_.emplace(map, partition_, options.updates,
                  typename MuonShards<Exec>::Options{.weight_decay = options.masters.adamw.weight_decay,
                                                     .products = dtype_of<T>,
                                                     .ranks = &ranks,
                                                     .channel = options.channel});
  weights_ = allocate<T>(exec, array_of(state_arrays(map, layout_), weights_label));
  if (weights_.allocated()) Kokkos::deep_copy(exec, *weights_, T(0.0f));
  if (holds_gradients())
    all_gradients_ = slice(backward_->gradients(), partition_.shard_size(), partition_.padded_size());
}

template <class Exec, class T>
ShardedParameters<Exec, T>::~ShardedParameters() = default;

template <class Exec, class T>
void ShardedParameters<Exec, T>::initialize(const Exec& exec, std::uint64_t seed) {
  for (int unit = 0; unit < partition_.units(); ++unit) {
    const model::ParameterUnit part = partition_.part(unit, ranks_.rank());
    masters_.fill(exec, partition_.offset_in_shard(unit), part.size(),
                  [&](std::int64_t first, const Array1<float, Exec>& values) {
                    model::initialize_range(exec, map_, seed, part.begin + first, values);
                  });
  }
  round_own_weights(exec);
  gather_all(exec);
}

template <class Exec, class T>
void ShardedParameters<Exec, T>::restored(const Exec& exec, std::int64_t steps) {
  masters_.set_steps(steps);
  round_own_weights(exec);
  gather_all(exec);
}

// --- Weights ----------------------------------------------------------------------------------------------

template <class Exec, class T>
Array1<T, Exec> ShardedParameters<Exec, T>::own_weights(int unit) const {
  const std::int64_t part = partition_.part_size(unit);
  return holds_weights() ? slice(*weights_, partition_.padded_offset(unit) + ranks_.rank() * part, part)
                         : slice(*weights_, partition_.offset_in_shard(unit), part);
}

template <class Exec, class T>
auto ShardedParameters<Exec, T>::own_parts(const Exec& exec) -> std::vector<WeightPart> {
  std::vector<WeightPart> parts;
  for (int unit = 0; masters_.offloaded() && unit < partition_.units(); ++unit) {
    wait(exec, unit, gathered_[static_cast<std::size_t>(unit)]);  // it may still send what is written next
    parts.push_back({partition_.offset_in_shard(unit), own_weights(unit)});
  }
  return parts;
}

template <class Exec, class T>
void ShardedParameters<Exec, T>::round_own_weights(const Exec& exec) {
  for (const WeightPart& part : own_parts(exec)) masters_.round(exec, part.begin, part.weights);
}

template <class Exec, class T>
void ShardedParameters<Exec, T>::start_gather(const Exec& exec, int unit, Gathered& to) {
  const Region region("annulus::parameter_sharding::gather");
  const comm::Watchdog::ActivityScope activity(ranks_.watchdog(), gather_text(unit));
  const std::int64_t part = partition_.part_size(unit);
  const Array1<T, Exec> elements =
      holds_weights() ? slice(*weights_, partition_.padded_offset(unit), partition_.padded_size(unit))
                      : *to.elements;
  const Array1<T, Exec> own = slice(elements, ranks_.rank() * part, part);
  if (!masters_.offloaded())
    masters_.round(exec, partition_.offset_in_shard(unit), own);
  else if (!holds_weights())
    Kokkos::deep_copy(exec, own, own_weights(unit));
  to.request = ranks_.start_all_gather(exec, own, elements, options_.channel);
}

template <class Exec, class T>
void ShardedParameters<Exec, T>::wait(const Exec& exec, int unit, Gathered& gathered) {
  const comm::Watchdog::ActivityScope activity(ranks_.watchdog(), gather_text(unit));
  if (!gathered.request.active()) return;
  const Region region(wait_region);
  waiting_.begin(exec);
  gathered.request.wait();
  waiting_.end(exec);
}

template <class Exec, class T>
std::string ShardedParameters<Exec, T>::gather_text(int unit) const {
  return fmt::format("the all-gather of the weights of {}", map_.unit_name(unit));
}

template <class Exec, class T>
std::string ShardedParameters<Exec, T>::reduction_text(int unit) const {
  return fmt::format("the reduce-scatter of the gradient of {}", map_.unit_name(unit));
}

template <class Exec, class T>
const Array1<T, Exec>& ShardedParameters<Exec, T>::whole_weights(const Exec& exec) {
  for (int unit = 0; holds_weights() && unit < partition_.units(); ++unit)
    wait(exec, unit, gathered_[static_cast<std::size_t>(unit)]);
  return *weights_;
}

template <class Exec, class T>
void ShardedParameters<Exec, T>::gather_all(const Exec& exec) {
  if (!holds_weights()) return;
  for (int unit = 0; unit < partition_.units(); ++unit) {
    Gathered& gathered = gathered_[static_cast<std::size_t>(unit)];
    wait(exec, unit, gathered);  // of an earlier optimizer step, if nobody asked for it
    start_gather(exec, unit, gathered);
  }
}

template <class Exec, class T>
Array1<const T, Exec> ShardedParameters<Exec, T>::weights(const Exec& exec, int unit, int next) {
  carry_out(exec, schedule_.call({model::UnitCall::Kind::weights, unit, next}));
  const std::int64_t size = map_.unit(unit).size();
  return holds_weights() ? slice(*weights_, partition_.padded_offset(unit), size)
                         : slice(*gathered_[static_cast<std::size_t>(unit)].elements, 0, size);
}

template <class Exec, class T>
void ShardedParameters<Exec, T>::release_weights(const Exec& exec, int unit) {
  ranks_.progress();
  carry_out(exec, schedule_.call({model::UnitCall::Kind::release_weights, unit}));
}

template <class Exec, class T>
bool ShardedParameters<Exec, T>::carry_out(const Exec& exec, std::span<const UnitStep> steps) {
  bool begins = false;
  for (const auto& [kind, unit] : steps) {
    const auto index = static_cast<std::size_t>(unit);
    switch (kind) {
      case UnitStep::Kind::gather:
        gathered_[index].elements = allocate<T>(exec, unit_weights(partition_, layout_, unit));
        start_gather(exec, unit, gathered_[index]);
        break;
      case UnitStep::Kind::await:
        wait(exec, unit, gathered_[index]);
        break;
      case UnitStep::Kind::drop_weights:
        gathered_[index].elements = {};
        break;
      case UnitStep::Kind::begin_gradient:
        unit_gradients_[index] = allocate<float>(exec, unit_gradient(partition_, unit));
        begins = true;
        break;
      case UnitStep::Kind::hold:
        begins = backward_->hold(held_gradient(layout_, unit));
        break;
      case UnitStep::Kind::start_sum:
        start_reduction(exec, unit);
        break;
      case UnitStep::Kind::complete_sum:
        complete_reduction(exec, unit);
    }
  }
  return begins;
}

// --- Gradients --------------------------------------------------------------------------------------------

template <class Exec, class T>
void ShardedParameters<Exec, T>::forget_gradients(const Exec& exec) {
  backward_->forget();
  non_finite_.reset(exec);
  std::fill(reduced_.begin(), reduced_.end(), false);
}

template <class Exec, class T>
model::UnitGradient<Exec> ShardedParameters<Exec, T>::gradients(const Exec& exec, int unit) {
  ranks_.progress();
  const bool fresh = carry_out(exec, schedule_.call({model::UnitCall::Kind::gradients, unit}));
  const Array1<float, Exec> padded =
      holds_gradients() ? whole_gradient(unit) : *unit_gradients_[static_cast<std::size_t>(unit)];
  const std::int64_t size = map_.unit(unit).size();
  // The model sets the gradient; what makes it divisible among ranks is summed and updated, too.
  if (fresh) Kokkos::deep_copy(exec, slice(padded, size, partition_.padded_size(unit) - size), 0.0f);
  return {slice(padded, 0, size), fresh};
}

template <class Exec, class T>
void ShardedParameters<Exec, T>::start_reduction(const Exec& exec, int unit) {
  const Region region("annulus::parameter_sharding::reduce");
  const comm::Watchdog::ActivityScope activity(ranks_.watchdog(), reduction_text(unit));
  pending_.elements = std::move(unit_gradients_[static_cast<std::size_t>(unit)]);
  const Array1<float, Exec> elements = summed(unit);
  // The sum over all ranks hides whose gradient went wrong first, so each rank looks at its own.
  non_finite_.look(exec, map_.unit(unit).begin, slice(elements, 0, map_.unit(unit).size()));
  pending_.request =
      ranks_.start_reduce_scatter(exec, elements, sum_of(unit, elements), options_.channel, options_.sums);
}

template <class Exec, class T>
Array1<float, Exec> ShardedParameters<Exec, T>::sum_of(int unit, const Array1<float, Exec>& elements) const {
  const std::int64_t part = partition_.part_size(unit);
  return reduced_[static_cast<std::size_t>(unit)] ? slice(elements, ranks_.rank() * part, part)
                                                  : shard_of(unit);
}

template <class Exec, class T>
void ShardedParameters<Exec, T>::complete_reduction(const Exec& exec, int unit) {
  {
    const comm::Watchdog::ActivityScope activity(ranks_.watchdog(), reduction_text(unit));
    const Region region(wait_region);
    waiting_.begin(exec);
    pending_.request.wait();
    waiting_.end(exec);
  }
  // Sums of earlier sequences are added behind those of the ranks.
  if (reduced_[static_cast<std::size_t>(unit)]) add<Exec>(exec, shard_of(unit), sum_of(unit, summed(unit)));
  reduced_[static_cast<std::size_t>(unit)] = true;
  pending_ = {};
}

template <class Exec, class T>
void ShardedParameters<Exec, T>::finish_gradients(const Exec& exec, int unit) {
  carry_out(exec, schedule_.call({model::UnitCall::Kind::finish_gradients, unit}));
}

template <class Exec, class T>
void ShardedParameters<Exec, T>::reduce_gradients(const Exec& exec) {
  carry_out(exec, schedule_.end());
  if (options_.replicas != nullptr) {
    const comm::Watchdog::ActivityScope activity(ranks_.watchdog(),
                                                 "the sum of gradient shards over the groups' copies");
    waiting_.begin(exec);
    options_.replicas->all_reduce(exec, gradient_, comm::ReduceOp::sum, options_.sums);
    waiting_.end(exec);
  }
}

template <class Exec, class T>
optimizer::Clipping ShardedParameters<Exec, T>::measure(const Exec& exec,
                                                        optimizer::GradientClipper<Exec>& clipper) {
  return clipper.measure(exec, gradient_, norm_blocks_, &ranks_);
}

template <class Exec, class T>
void ShardedParameters<Exec, T>::update(const Exec& exec, double learning_rate, float gradient_scale) {
  masters_.step(exec, gradient_, learning_rate, gradient_scale, own_parts(exec));
  if (muon_) {
    waiting_.begin(exec);
    muon_->step(exec, masters_, gradient_, learning_rate, gradient_scale);
    waiting_.end(exec);
  }
  gather_all(exec);
}

template <class Exec, class T>
auto ShardedParameters<Exec, T>::masters_at_root(const Exec& exec, int unit) -> Owned<Array1<float, Exec>> {
  const auto part = masters_.resident(exec, partition_.offset_in_shard(unit), partition_.part_size(unit));
  return gather_at_root(exec, unit, part.values);
}

template <class Exec, class T>
auto ShardedParameters<Exec, T>::gradients_at_root(const Exec& exec, int unit) -> Owned<Array1<float, Exec>> {
  return gather_at_root(exec, unit,
                        slice(gradient_, partition_.offset_in_shard(unit), partition_.part_size(unit)));
}

template <class Exec, class T>
auto ShardedParameters<Exec, T>::gather_at_root(const Exec& exec, int unit, const Array1<float, Exec>& own)
    -> Owned<Array1<float, Exec>> {
  const comm::Watchdog::ActivityScope activity(
      ranks_.watchdog(), fmt::format("the gathering of {} at rank 0", map_.unit_name(unit)));
  const std::int64_t part = partition_.part_size(unit);
  if (ranks_.rank() != 0) {
    const std::array<comm::Send, 1> send{comm::send_view(own, 0)};
    ranks_.exchange(exec, send, {}, options_.channel).wait();
    return {};
  }
  auto whole = Buffer<float>::uninitialized(exec, MemoryCategory::workspace,
                                            "annulus::parameter_sharding::gathered_unit",
                                            partition_.padded_size(unit));
  std::vector<comm::Receive> receives;
  for (int rank = 1; rank < ranks_.size(); ++rank)
    receives.push_back(comm::receive_view(slice(*whole, rank * part, part), rank));
  Kokkos::deep_copy(exec, slice(*whole, 0, part), own);
  ranks_.exchange(exec, {}, receives, options_.channel).wait();
  return whole;
}

ANNULUS_FOR_TRAINING(ANNULUS_COMPILE_TYPED_CLASS, ShardedParameters)

}  // namespace annulus::parameter_sharding
