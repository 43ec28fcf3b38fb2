#include "training/optimizer/offloaded_adamw.hpp"

#include <algorithm>

#include <annulus/base/error.hpp>

#include "base/kokkos/cast.hpp"
#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/instantiate.hpp"
#include "training/optimizer/host_adamw.hpp"

namespace annulus::optimizer::detail {

namespace {

PinnedBuffer zeros(const PlannedArray& array) {
  PinnedBuffer buffer = allocate_pinned(array);
  const std::span<float> values = buffer.as<float>();
  Kokkos::deep_copy(HostExec(), Array1<float, HostExec>(values.data(), values.size()), 0.0f);
  return buffer;
}

std::size_t bytes_of(std::int64_t floats) {
  return static_cast<std::size_t>(floats) * sizeof(float);
}

}  // namespace

template <class Exec, class T>
OffloadedAdamW<Exec, T>::OffloadedAdamW(const MasterOptions& options, const ArrayTable& arrays,
                                        std::span<const ParameterRange> ranges)
    : options_(options.adamw),
      size_(arrays[0].elements),
      piece_(array_of(arrays, "annulus::optimizer::gradient_piece").elements),
      chunks_(adamw_chunks(size_, ranges)),
      masters_(zeros(arrays[0])),
      first_moment_(zeros(arrays[1])),
      second_moment_(zeros(arrays[2])) {
  options_.validate();
  require(options.piece > 0, "AdamW: pieces of {} elements were asked for", options.piece);
  for (PieceSlot& slot : slots_) {
    slot.gradients = allocate_pinned(array_of(arrays, "annulus::optimizer::gradient_piece"));
    slot.weights = allocate_pinned(array_of(arrays, "annulus::optimizer::weight_piece"));
  }
}

template <class Exec, class T>
void OffloadedAdamW<Exec, T>::write(const Exec& exec, std::int64_t begin,
                                    const Array1<const float, Exec>& values) {
  Queue(exec).copy_to_host(masters().data() + begin, values.data(), values.size() * sizeof(float));
  exec.fence("annulus::optimizer::MasterWeights: the host has the master weights");
}

template <class Exec, class T>
void OffloadedAdamW<Exec, T>::read(const Exec& exec, std::int64_t begin,
                                   const Array1<float, Exec>& values) const {
  Queue(exec).copy_from_host(values.data(), masters().data() + begin, values.size() * sizeof(float));
  exec.fence("annulus::optimizer::MasterWeights: the host may change the master weights");
}

template <class Exec, class T>
auto OffloadedAdamW<Exec, T>::cut(std::span<const WeightPart> parts) const -> std::vector<OffloadedPiece> {
  std::vector<OffloadedPiece> pieces;
  std::int64_t covered = 0;
  const auto cover = [&](std::int64_t end, T* weights) {
    const std::int64_t first = covered;
    for (; covered < end; covered = pieces.back().end)
      pieces.push_back({covered, std::min(covered + piece_, end),
                        weights == nullptr ? nullptr : weights + (covered - first)});
  };
  for (const WeightPart& part : parts) {
    cover(part.begin, nullptr);
    cover(part.begin + static_cast<std::int64_t>(part.weights.extent(0)), part.weights.data());
  }
  cover(size_, nullptr);
  return pieces;
}

template <class Exec, class T>
void OffloadedAdamW<Exec, T>::fetch(const float* gradients, const OffloadedPiece& piece, PieceSlot& slot) {
  const Queue queue(*down_);
  queue.copy_to_host(slot.gradients.data(), gradients + piece.begin, bytes_of(piece.size()));
  slot.down.record(queue);
}

template <class Exec, class T>
void OffloadedAdamW<Exec, T>::send(const OffloadedPiece& piece, PieceSlot& slot) {
  if (piece.weights == nullptr) return;
  const Queue queue(*up_);
  const void* from = slot.weights.data();
  if (!rounds) from = masters().data() + piece.begin;
  queue.copy_from_host(piece.weights, from, static_cast<std::size_t>(piece.size()) * sizeof(T));
  slot.up.record(queue);
}

template <class Exec, class T>
void OffloadedAdamW<Exec, T>::round(const Exec& exec, std::int64_t begin, const Array1<T, Exec>& weights) {
  ready_.record(Queue(exec));
  ready_.block(Queue(*up_));
  const auto count = static_cast<std::int64_t>(weights.extent(0));
  int turn = 0;
  for (std::int64_t first = 0; first < count; first += piece_, turn ^= 1) {
    PieceSlot& slot = slots_[static_cast<std::size_t>(turn)];
    const OffloadedPiece piece{begin + first, begin + std::min(first + piece_, count),
                               weights.data() + first};
    if constexpr (rounds) {
      slot.up.wait();
      cast<HostExec, T, float>(HostExec(),
                               Array1<const float, HostExec>(masters().data() + piece.begin, piece.size()),
                               Array1<T, HostExec>(slot.weights.template as<T>().data(), piece.size()));
      HostExec().fence("annulus::optimizer::MasterWeights: the weights are rounded");
    }
    send(piece, slot);
  }
  for (const PieceSlot& slot : slots_) slot.up.wait();
}

template <class Exec, class T>
void OffloadedAdamW<Exec, T>::update(const AdamWCoefficients& by, const OffloadedPiece& piece,
                                     const PieceSlot& slot) {
  const auto first =
      std::ranges::upper_bound(chunks_, piece.begin, {}, [](const AdamWChunk& chunk) { return chunk.end; });
  const auto last =
      std::ranges::lower_bound(chunks_, piece.end, {}, [](const AdamWChunk& chunk) { return chunk.begin; });
  T* const weights = rounds && piece.weights != nullptr ? slot.weights.template as<T>().data() : nullptr;
  const HostExec exec;
  update_on_host<HostExec, T>(exec, by, std::span(first, last),
                              {.begin = piece.begin,
                               .end = piece.end,
                               .parameters = masters().data(),
                               .first_moment = first_moment().data(),
                               .second_moment = second_moment().data(),
                               .gradients = slot.gradients.template as<float>().data(),
                               .weights = weights});
  exec.fence("annulus::optimizer::MasterWeights: a piece is updated");
}

template <class Exec, class T>
void OffloadedAdamW<Exec, T>::step(const Exec& exec, const Array1<const float, Exec>& gradients,
                                   double learning_rate, float gradient_scale,
                                   std::span<const WeightPart> parts,
                                   const typename MasterWeights<Exec, T>::Gate& gate) {
  const Region region("annulus::optimizer::offloaded_adamw");
  ++steps_;
  const AdamWCoefficients by = adamw_coefficients(options_, steps_, learning_rate, gradient_scale);
  const std::vector<OffloadedPiece> pieces = cut(parts);
  ready_.record(Queue(exec));
  ready_.block(Queue(*down_));
  ready_.block(Queue(*up_));
  for (std::size_t i = 0; i < std::min(slots_.size(), pieces.size()); ++i)
    fetch(gradients.data(), pieces[i], slots_[i]);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    PieceSlot& slot = slots_[i % slots_.size()];
    slot.down.wait();
    slot.up.wait();  // the weights of the piece before in this slot have left
    if (gate) gate(pieces[i].end);
    update(by, pieces[i], slot);
    send(pieces[i], slot);
    if (i + slots_.size() < pieces.size()) fetch(gradients.data(), pieces[i + slots_.size()], slot);
  }
  for (const PieceSlot& slot : slots_) slot.up.wait();
}

ANNULUS_FOR_TRAINING(ANNULUS_COMPILE_TYPED_CLASS, OffloadedAdamW)

}  // namespace annulus::optimizer::detail
