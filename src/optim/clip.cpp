#include <annulus/optim/clip.hpp>

#include <algorithm>

#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>
#include <annulus/core/pack.hpp>
#include <annulus/core/region.hpp>

#include "core/instantiate.hpp"

namespace annulus::optim {
namespace {

constexpr std::int64_t block_size = 16384;

template <class Exec>
using Member = typename Kokkos::TeamPolicy<Exec>::member_type;

// A fixed number of threads, hence a fixed order of addition.
template <class Exec>
Kokkos::TeamPolicy<Exec> teams(const Exec& exec, std::int64_t count, int threads) {
  return {exec, static_cast<int>(count), annulus::detail::host_memory<Exec> ? 1 : threads};
}

// sums (blocks + 1): of each block
template <int width, class Exec>
void squares_of_blocks(const Exec& exec, const Array1<const float, Exec>& values,
                       const Array1<double, Exec>& sums, std::int64_t blocks) {
  const auto size = static_cast<std::int64_t>(values.extent(0));
  Kokkos::parallel_for(
      "annulus::optim::squares_of_blocks", teams(exec, blocks, 256), KOKKOS_LAMBDA(const Member<Exec>& team) {
        const std::int64_t block = team.league_rank(), begin = block * block_size;
        const std::int64_t end = Kokkos::min(begin + block_size, size);
        const std::int64_t packed = begin + (end - begin) / width * width;
        const int rank = team.team_rank(), step = team.team_size();
        double squares[width] = {};
        for (std::int64_t i = begin + rank * width; i < packed; i += step * width) {
          const auto pack = load<width>(&values(i));
          for (int j = 0; j < width; ++j) squares[j] += static_cast<double>(pack[j]) * pack[j];
        }
        for (std::int64_t i = packed + rank; i < end; i += step)
          squares[0] += static_cast<double>(values(i)) * values(i);
        double sum = squares[0];
        for (int j = 1; j < width; ++j) sum += squares[j];
        team.team_reduce(Kokkos::Sum<double>(sum));
        if (rank == 0) sums(block) = sum;
      });
}

// sums (blocks + 1): of each block, and of all
template <class Exec>
void sum_of_squares(const Exec& exec, const Array1<const float, Exec>& values,
                    const Array1<double, Exec>& sums, std::int64_t blocks) {
  with_pack_width<Exec, float>(in_packs<Exec, float>(pack_width<Exec, float>, values), [&](auto width) {
    squares_of_blocks<decltype(width)::value>(exec, values, sums, blocks);
  });
  Kokkos::parallel_for(
      "annulus::optim::sum_of_blocks", teams(exec, 1, 512), KOKKOS_LAMBDA(const Member<Exec>& team) {
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
Clipping GradientClipper<Exec>::measure(const Exec& exec, const Array1<const float, Exec>& gradients,
                                        comm::Communicator* communicator) {
  const Region region("annulus::optim::gradient_norm");
  const std::int64_t blocks = ceil_divide(static_cast<std::int64_t>(gradients.extent(0)), block_size);
  if (static_cast<std::int64_t>(sums_.view().extent(0)) < blocks + 1) {
    sums_ = {};
    sums_ = Owned<Array1<double, Exec>>::uninitialized(exec, MemoryCategory::workspace,
                                                       "annulus::optim::block_sums", blocks + 1);
  }
  sum_of_squares<Exec>(exec, gradients, *sums_, blocks);
  double sum = 0.0;
  Kokkos::deep_copy(exec, sum, Kokkos::subview(*sums_, blocks));
  exec.fence("annulus::optim::gradient_norm: the host reads the sum");
  if (communicator != nullptr) sum = communicator->all_reduce_value(sum, comm::ReduceOp::sum);

  Clipping result{std::sqrt(sum), 1.0f};
  if (!result.finite()) {
    result.scale = 0.0f;
  } else if (result.norm > max_norm_) {
    result.scale = static_cast<float>(max_norm_ / result.norm);
  }
  return result;
}

#define ANNULUS_INSTANTIATE(Exec) template class GradientClipper<Exec>;
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_INSTANTIATE)
ANNULUS_ON_SERIAL(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::optim
