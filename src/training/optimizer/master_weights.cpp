#include "training/optimizer/master_weights.hpp"

#include <type_traits>

#include <annulus/base/error.hpp>

#include "base/kokkos/cast.hpp"
#include "base/kokkos/instantiate.hpp"
#include "training/optimizer/offloaded_adamw.hpp"

namespace annulus::optimizer {

ArrayTable master_arrays(const MasterOptions& options, std::int64_t size, DType weights) {
  constexpr std::int64_t fp32 = sizeof(float);
  const bool offload = options.offload;
  ArrayTable table{{"annulus::optimizer::masters", MemoryCategory::parameters, size, fp32, offload},
                   {"annulus::optimizer::first_moment", MemoryCategory::optimizer, size, fp32, offload},
                   {"annulus::optimizer::second_moment", MemoryCategory::optimizer, size, fp32, offload}};
  const std::int64_t piece = std::min(options.piece, size);
  for (int slot = 0; offload && slot < 2; ++slot) {
    table.push_back({"annulus::optimizer::gradient_piece", MemoryCategory::workspace, piece, fp32, true});
    if (weights != DType::f32)  // these go up from the masters
      table.push_back({"annulus::optimizer::weight_piece", MemoryCategory::workspace, piece,
                       static_cast<std::int64_t>(size_of(weights)), true});
  }
  return table;
}

template <class Exec, class T>
MasterWeights<Exec, T>::MasterWeights(const Exec& exec, const MasterOptions& options, std::int64_t size,
                                      std::span<const ParameterRange> ranges)
    : size_(size), piece_(options.piece) {
  const ArrayTable arrays = master_arrays(options, size, dtype_of<T>);
  if (options.offload) {
    offloaded_ = std::make_unique<detail::OffloadedAdamW<Exec, T>>(options, arrays, ranges);
  } else {
    masters_ = allocate<float>(exec, arrays[0]);
    Kokkos::deep_copy(exec, *masters_, 0.0f);
    adamw_.emplace(exec, options.adamw, size, ranges);
  }
}

template <class Exec, class T>
MasterWeights<Exec, T>::~MasterWeights() = default;

template <class Exec, class T>
std::int64_t MasterWeights<Exec, T>::steps() const {
  return offloaded() ? offloaded_->steps() : adamw_->steps();
}

template <class Exec, class T>
void MasterWeights<Exec, T>::set_steps(std::int64_t steps) {
  offloaded() ? offloaded_->set_steps(steps) : adamw_->set_steps(steps);
}

template <class Exec, class T>
auto MasterWeights<Exec, T>::on_host() const -> MasterArrays<HostExec> {
  return {offloaded_->masters(), offloaded_->first_moment(), offloaded_->second_moment()};
}

template <class Exec, class T>
void MasterWeights<Exec, T>::write(const Exec& exec, std::int64_t begin,
                                   const Array1<const float, Exec>& values) {
  offloaded_->write(exec, begin, values);
}

template <class Exec, class T>
void MasterWeights<Exec, T>::require_inside(std::int64_t begin, std::int64_t end) const {
  require(begin >= 0 && begin <= end && end <= size_, "master weights [{}, {}) of {} were asked for", begin,
          end, size_);
}

template <class Exec, class T>
void MasterWeights<Exec, T>::broadcast(const Exec& exec, comm::Communicator& ranks, int root,
                                       std::int64_t begin, std::int64_t end) const {
  require_inside(begin, end);
  if (begin == end) return;
  const auto bytes = static_cast<std::size_t>(end - begin) * sizeof(float);
  visit(exec, [&](const auto& instance, const auto&... buffers) {
    (ranks.broadcast(instance, static_cast<void*>(buffers.data() + begin), bytes, root), ...);
  });
}

template <class Exec, class T>
auto MasterWeights<Exec, T>::resident(const Exec& exec, std::int64_t begin, std::int64_t count) const
    -> Resident {
  require_inside(begin, begin + count);
  if (!offloaded()) return {{}, Array1<float, Exec>(masters().data() + begin, count)};
  Resident there;
  there.copy = Owned<Array1<float, Exec>>::uninitialized(exec, MemoryCategory::workspace,
                                                         "annulus::optimizer::resident_masters", count);
  there.values = *there.copy;
  offloaded_->read(exec, begin, there.values);
  return there;
}

template <class Exec, class T>
void MasterWeights<Exec, T>::round(const Exec& exec, std::int64_t begin,
                                   const Array1<T, Exec>& weights) const {
  const auto count = static_cast<std::int64_t>(weights.extent(0));
  require_inside(begin, begin + count);
  if (offloaded()) return offloaded_->round(exec, begin, weights);
  const Array1<const float, Exec> masters(this->masters().data() + begin, count);
  if constexpr (std::is_same_v<T, float>) {
    Kokkos::deep_copy(exec, weights, masters);
  } else {
    cast<Exec, T, float>(exec, masters, weights);
  }
}

template <class Exec, class T>
void MasterWeights<Exec, T>::step(const Exec& exec, const Array1<const float, Exec>& gradients,
                                  double learning_rate, float gradient_scale,
                                  std::span<const WeightPart> parts) {
  require(static_cast<std::int64_t>(gradients.extent(0)) == size_,
          "AdamW: {} gradients '{}' do not fit {} master weights", gradients.extent(0), gradients.label(),
          size_);
  std::int64_t covered = 0;
  for (const WeightPart& part : parts) {
    const std::int64_t end = part.begin + static_cast<std::int64_t>(part.weights.extent(0));
    require(part.begin >= covered && end <= size_,
            "AdamW: the weights [{}, {}) do not follow {} within {} elements: "
            "parts come in order and do not overlap",
            part.begin, end, covered, size_);
    covered = end;
  }
  if (offloaded()) return offloaded_->step(exec, gradients, learning_rate, gradient_scale, parts, gate_);
  if (gate_) gate_(size_);
  if (parts.size() == 1 && static_cast<std::int64_t>(parts[0].weights.extent(0)) == size_) {
    adamw_->step(exec, masters(), gradients, learning_rate, gradient_scale, parts[0].weights);
    return;
  }
  adamw_->step(exec, masters(), gradients, learning_rate, gradient_scale);
  for (const WeightPart& part : parts) round(exec, part.begin, part.weights);
}

ANNULUS_FOR_TRAINING(ANNULUS_COMPILE_TYPED_CLASS, MasterWeights)

}  // namespace annulus::optimizer
