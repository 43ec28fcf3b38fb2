#include <annulus/optim/clip.hpp>

#include <algorithm>

#include <annulus/base/error.hpp>
#include <annulus/core/region.hpp>

#include "core/instantiate.hpp"

namespace annulus::optim {
namespace {

constexpr std::int64_t block_size = 4096;

template <class Exec>
Kokkos::TeamPolicy<Exec> teams(const Exec& exec, std::int64_t count) {
  constexpr bool host =
      Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename Exec::memory_space>::accessible;
  return {exec, static_cast<int>(count), host ? 1 : 128};  // a fixed size, hence a fixed order of addition
}

// sums (blocks + 1)
template <class Exec>
void sum_of_squares(const Exec& exec, const Array1<const float, Exec>& values,
                    const Array1<double, Exec>& sums, std::int64_t blocks) {
  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  const auto size = static_cast<std::int64_t>(values.extent(0));
  Kokkos::parallel_for(
      "annulus::optim::squares_of_blocks", teams(exec, blocks), KOKKOS_LAMBDA(const Member& team) {
        const std::int64_t block = team.league_rank(), begin = block * block_size;
        const std::int64_t end = Kokkos::min(begin + block_size, size);
        double sum = 0.0;
        Kokkos::parallel_reduce(
            Kokkos::TeamVectorRange(team, begin, end),
            [&](std::int64_t i, double& partial) { partial += static_cast<double>(values(i)) * values(i); },
            sum);
        Kokkos::single(Kokkos::PerTeam(team), [&] { sums(block) = sum; });
      });
  Kokkos::parallel_for(
      "annulus::optim::sum_of_blocks", teams(exec, 1), KOKKOS_LAMBDA(const Member& team) {
        double sum = 0.0;
        Kokkos::parallel_reduce(
            Kokkos::TeamVectorRange(team, blocks),
            [&](std::int64_t block, double& partial) { partial += sums(block); }, sum);
        Kokkos::single(Kokkos::PerTeam(team), [&] { sums(blocks) = sum; });
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
  const std::int64_t blocks = (static_cast<std::int64_t>(gradients.extent(0)) + block_size - 1) / block_size;
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

}  // namespace annulus::optim
