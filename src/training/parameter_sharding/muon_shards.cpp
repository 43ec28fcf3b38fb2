#include "training/parameter_sharding/muon_shards.hpp"

#include <algorithm>

#include "attention/comm/watchdog.hpp"
#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/instantiate.hpp"
#include "base/kokkos/range.hpp"
#include "training/optimizer/adamw_update.hpp"

namespace annulus::parameter_sharding {

namespace {

using optimizer::detail::fused;
using optimizer::detail::product;

template <class Exec>
Array1<float, Exec> slice(const Array1<float, Exec>& of, std::int64_t begin, std::int64_t size) {
  return Array1<float, Exec>(of.data() + begin, size);
}

// M ← μ M + g, and U in the place of the gradient.
template <class Exec>
void add_momentum(const Exec& exec, float momentum, float gradient_scale,
                  const Array1<float, Exec>& gradients, const Array1<float, Exec>& first_moment) {
  Kokkos::parallel_for(
      "annulus::parameter_sharding::muon_momentum",
      ElementRange<Exec>(exec, 0, static_cast<std::int64_t>(gradients.extent(0))),
      KOKKOS_LAMBDA(const std::int64_t i) {
        const float g = product(gradient_scale, gradients(i));
        first_moment(i) = fused(momentum, first_moment(i), g);
        gradients(i) = fused(momentum, first_moment(i), g);
      });
}

template <class Exec>
void apply(const Exec& exec, float keep, float factor, const Array1<float, Exec>& masters,
           const Array1<const float, Exec>& updates) {
  Kokkos::parallel_for(
      "annulus::parameter_sharding::muon_update",
      ElementRange<Exec>(exec, 0, static_cast<std::int64_t>(masters.extent(0))),
      KOKKOS_LAMBDA(const std::int64_t i) {
        masters(i) = fused(keep, masters(i), product(factor, updates(i)));
      });
}

}  // namespace

optimizer::MuonSizes muon_sizes(const model::ParameterMap& map, const Updates& updates) {
  optimizer::MuonSizes sizes;
  for (const model::Parameter& p : map.all())
    if (updates.by_muon(p)) sizes.include(p.rows, p.columns);
  return sizes;
}

MuonWork muon_work(const model::ParameterMap& map, const Updates& updates) {
  MuonWork work;
  for (const model::Parameter& p : map.all()) {
    if (!updates.by_muon(p)) continue;
    work.flops += optimizer::muon_flops(p.rows, p.columns);
    work.elements += double(p.size());
  }
  return work;
}

template <class Exec>
MuonShards<Exec>::MuonShards(const model::ParameterMap& map, const Partition& partition,
                             const Updates& updates, const Options& options)
    : options_(options),
      momentum_(static_cast<float>(updates.momentum)),
      orthogonalizer_(muon_sizes(map, updates), options.products) {
  for (int unit = 0; unit < partition.units(); ++unit)
    for (const model::Parameter& p : map.all()) {
      if (p.offset < map.unit(unit).begin || p.offset >= map.unit(unit).end || !updates.by_muon(p)) continue;
      Matrix matrix{p.rows, p.columns, updates.decays(p), {}};
      for (int r = 0; r < partition.ranks(); ++r) {
        const model::ParameterUnit part = partition.part(unit, r);
        const std::int64_t begin = std::max(p.offset, part.begin),
                           end = std::min(p.offset + p.size(), part.end);
        matrix.pieces.push_back(begin < end ? Piece{begin - p.offset, end - begin,
                                                    partition.offset_in_shard(unit) + begin - part.begin}
                                            : Piece{});
      }
      matrices_.push_back(std::move(matrix));
    }
  std::ranges::stable_sort(matrices_, std::greater(),
                           [](const Matrix& m) { return optimizer::muon_flops(m.rows, m.columns); });
}

template <class Exec>
void MuonShards<Exec>::exchange(const Exec& exec, std::span<const Matrix> round,
                                const Array1<float, Exec>& shard, float* matrix, bool back) const {
  if (options_.ranks == nullptr || options_.ranks->size() == 1) return;
  std::vector<comm::Send> sends;
  std::vector<comm::Receive> receives;
  for (int owner = 0; owner < static_cast<int>(round.size()); ++owner) {
    const Matrix& of_owner = round[static_cast<std::size_t>(owner)];
    if (owner != rank()) {
      const Piece& mine = own(of_owner);
      if (mine.count == 0) continue;
      const auto part = slice<Exec>(shard, mine.offset, mine.count);
      if (back)
        receives.push_back(comm::receive_view(part, owner));
      else
        sends.push_back(comm::send_view(part, owner));
      continue;
    }
    for (int other = 0; other < options_.ranks->size(); ++other) {
      const Piece& piece = of_owner.pieces[static_cast<std::size_t>(other)];
      if (other == rank() || piece.count == 0) continue;
      const Array1<float, Exec> part(matrix + piece.first, piece.count);
      if (back)
        sends.push_back(comm::send_view(part, other));
      else
        receives.push_back(comm::receive_view(part, other));
    }
  }
  options_.ranks->exchange(exec, sends, receives, options_.channel).wait();
}

template <class Exec>
void MuonShards<Exec>::make_orthogonal(const Exec& exec, const Array1<float, Exec>& updates) {
  const comm::Watchdog::ActivityScope activity(
      options_.ranks == nullptr ? nullptr : options_.ranks->watchdog(), "Muon's exchange of matrices");
  const auto space = orthogonalizer_.space(exec);
  float* const whole = space.matrix(1, 1).data();
  const std::size_t ranks = options_.ranks == nullptr ? 1 : static_cast<std::size_t>(options_.ranks->size());
  for (std::size_t first = 0; first < matrices_.size(); first += ranks) {
    const auto round =
        std::span<const Matrix>(matrices_).subspan(first, std::min(ranks, matrices_.size() - first));
    exchange(exec, round, updates, whole, false);
    if (static_cast<std::size_t>(rank()) < round.size()) {
      const Matrix& matrix = round[static_cast<std::size_t>(rank())];
      const Piece& mine = own(matrix);
      const Array1<float, Exec> there(whole + mine.first, mine.count),
          here = slice<Exec>(updates, mine.offset, mine.count);
      Kokkos::deep_copy(exec, there, here);
      orthogonalizer_.make_orthogonal(exec, space, matrix.rows, matrix.columns);
      Kokkos::deep_copy(exec, here, there);
    }
    exchange(exec, round, updates, whole, true);
  }
}

template <class Exec>
template <class T>
void MuonShards<Exec>::step(const Exec& exec, const optimizer::MasterWeights<Exec, T>& masters,
                            const Array1<float, Exec>& gradients, double learning_rate,
                            float gradient_scale) {
  const Region region("annulus::parameter_sharding::muon");
  if (matrices_.empty()) return;
  const Array1<float, Exec> moment = masters.first_moment();
  for (const Matrix& matrix : matrices_) {
    const Piece& mine = own(matrix);
    add_momentum<Exec>(exec, momentum_, gradient_scale, slice<Exec>(gradients, mine.offset, mine.count),
                       slice<Exec>(moment, mine.offset, mine.count));
  }
  make_orthogonal(exec, gradients);
  for (const Matrix& matrix : matrices_) {
    const Piece& mine = own(matrix);
    const double keep = matrix.decay ? 1.0 - learning_rate * options_.weight_decay : 1.0;
    const double scale = optimizer::muon_scale(matrix.rows, matrix.columns);
    apply<Exec>(exec, static_cast<float>(keep), static_cast<float>(-learning_rate * scale),
                slice<Exec>(masters.masters(), mine.offset, mine.count),
                slice<Exec>(gradients, mine.offset, mine.count));
  }
}

ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_COMPILE_CLASS, MuonShards)
#define ANNULUS_INSTANTIATE(Exec, T)                                                          \
  template void MuonShards<Exec>::step(const Exec&, const optimizer::MasterWeights<Exec, T>&, \
                                       const Array1<float, Exec>&, double, float);
ANNULUS_FOR_TRAINING(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::parameter_sharding
