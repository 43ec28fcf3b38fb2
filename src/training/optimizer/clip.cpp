#include "training/optimizer/clip.hpp"

#include <algorithm>
#include <vector>

#include <annulus/base/error.hpp>

#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/instantiate.hpp"
#include "base/kokkos/pack.hpp"

namespace annulus::optimizer {
namespace {

template <class Exec>
using Member = typename Kokkos::TeamPolicy<Exec>::member_type;

// A fixed number of threads, hence a fixed order of addition.
template <class Exec>
Kokkos::TeamPolicy<Exec> teams(const Exec& exec, std::int64_t count, int threads) {
  return {exec, static_cast<int>(count), annulus::detail::host_memory<Exec> ? 1 : threads};
}

// `width` neighbours as one load where they are aligned; which thread adds which of them is the same
// otherwise.
template <int width, bool aligned, class Exec>
KOKKOS_FORCEINLINE_FUNCTION Pack<width> neighbours(const Array1<const float, Exec>& values, std::int64_t i) {
  if constexpr (aligned) {
    return load<width>(&values(i));
  } else {
    Pack<width> pack;
    for (int j = 0; j < width; ++j) pack[j] = values(i + j);
    return pack;
  }
}

// sums (blocks + 1): of each own block
template <bool aligned, class Exec>
void squares_of_blocks(const Exec& exec, const Array1<const float, Exec>& values,
                       const NormBlocks<Exec>& blocks, const Array1<double, Exec>& sums) {
  constexpr int width = pack_width<Exec, float>;
  const auto own = blocks.own();
  if (own.extent(0) == 0) return;
  Kokkos::parallel_for(
      "annulus::optimizer::squares_of_blocks", teams(exec, static_cast<std::int64_t>(own.extent(0)), 256),
      KOKKOS_LAMBDA(const Member<Exec>& team) {
        const auto block = own(team.league_rank());
        const std::int64_t packed = block.begin + (block.end - block.begin) / width * width;
        const int rank = team.team_rank(), step = team.team_size();
        double squares[width] = {};
        for (std::int64_t i = block.begin + rank * width; i < packed; i += step * width) {
          const auto pack = neighbours<width, aligned, Exec>(values, i);
          for (int j = 0; j < width; ++j) squares[j] += static_cast<double>(pack[j]) * pack[j];
        }
        for (std::int64_t i = packed + rank; i < block.end; i += step)
          squares[0] += static_cast<double>(values(i)) * values(i);
        double sum = squares[0];
        for (int j = 1; j < width; ++j) sum += squares[j];
        team.team_reduce(Kokkos::Sum<double>(sum));
        if (rank == 0) sums(block.number) = sum;
      });
}

// sums (blocks + 1): of each block; then of all
template <class Exec>
void sum_of_blocks(const Exec& exec, const Array1<double, Exec>& sums, std::int64_t blocks) {
  Kokkos::parallel_for(
      "annulus::optimizer::sum_of_blocks", teams(exec, 1, 512), KOKKOS_LAMBDA(const Member<Exec>& team) {
        double sum = 0.0;
        for (std::int64_t block = team.team_rank(); block < blocks; block += team.team_size())
          sum += sums(block);
        team.team_reduce(Kokkos::Sum<double>(sum));
        if (team.team_rank() == 0) sums(blocks) = sum;
      });
}

}  // namespace

template <class Exec>
GradientClipper<Exec>::GradientClipper(double max_norm) : max_norm_(max_norm) {
  require(max_norm > 0.0,
          "gradient clipping: max_norm is {}, but it must be positive (infinity for no clipping)", max_norm);
}

template <class Exec>
NormBlocks<Exec>::NormBlocks(const Exec& exec, std::span<const NormRange> ranges, std::int64_t count)
    : count_(count) {
  std::vector<NormBlock> blocks;
  for (const NormRange& range : ranges) {
    std::int64_t number = range.first_block;
    for (std::int64_t begin = range.begin; begin < range.end; begin += size)
      blocks.push_back({begin, std::min(begin + size, range.end), number++});
    require(range.begin >= 0 && range.first_block >= 0 && number <= count,
            "gradient norm: the range [{}, {}) has blocks {} to {} of {}", range.begin, range.end,
            range.first_block, number - 1, count);
    end_ = std::max(end_, range.end);
    while (range.begin % alignment_ != 0) alignment_ /= 2;
  }
  own_ = Owned<Array1<NormBlock, Exec>>::uninitialized(exec, MemoryCategory::workspace,
                                                       "annulus::optimizer::norm_blocks", blocks.size());
  const Kokkos::View<const NormBlock*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged> on_host(blocks.data(),
                                                                                           blocks.size());
  Kokkos::deep_copy(exec, *own_, on_host);
  exec.fence("annulus::optimizer::NormBlocks: the list of blocks on the host goes out of scope");
}

template <class Exec>
Clipping GradientClipper<Exec>::measure(const Exec& exec, const Array1<const float, Exec>& gradients,
                                        const NormBlocks<Exec>& blocks, comm::Communicator* communicator) {
  const Region region("annulus::optimizer::gradient_norm");
  require(static_cast<std::int64_t>(gradients.extent(0)) >= blocks.end(),
          "gradient norm: '{}' has {} elements, but its blocks end at {}", gradients.label(),
          gradients.extent(0), blocks.end());
  const std::int64_t count = blocks.count();
  if (static_cast<std::int64_t>(sums_.view().extent(0)) < count + 1) {
    sums_ = {};
    sums_ = Owned<Array1<double, Exec>>::uninitialized(exec, MemoryCategory::workspace,
                                                       "annulus::optimizer::block_sums", count + 1);
  }
  // Adding zeros of other ranks changes no bit, so every rank ends up with the sums of all blocks.
  const Array1<double, Exec> sums((*sums_).data(), static_cast<std::size_t>(count));
  if (communicator != nullptr) Kokkos::deep_copy(exec, sums, 0.0);
  constexpr int width = pack_width<Exec, float>;
  const bool aligned = blocks.alignment() % width == 0 && in_packs<Exec, float>(width, gradients);
  aligned ? squares_of_blocks<true, Exec>(exec, gradients, blocks, *sums_)
          : squares_of_blocks<false, Exec>(exec, gradients, blocks, *sums_);
  if (communicator != nullptr) communicator->all_reduce(exec, sums);
  sum_of_blocks<Exec>(exec, *sums_, count);
  double sum = 0.0;
  Kokkos::deep_copy(exec, sum, Kokkos::subview(*sums_, count));
  exec.fence("annulus::optimizer::gradient_norm: the host reads the sum");

  Clipping result{std::sqrt(sum), 1.0f};
  if (!result.finite()) {
    result.scale = 0.0f;
  } else if (result.norm > max_norm_) {
    result.scale = static_cast<float>(max_norm_ / result.norm);
  }
  return result;
}

ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_COMPILE_CLASS, NormBlocks)
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_COMPILE_CLASS, GradientClipper)

}  // namespace annulus::optimizer
