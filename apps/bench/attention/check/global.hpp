#pragma once

#include <Kokkos_Core.hpp>
#include <cstdint>
#include <utility>
#include <vector>

#include <annulus/comm/communicator.hpp>
#include <annulus/plan/plan.hpp>

namespace annulus::bench {

/// A tensor of the whole sequence in fp32 and global token order: (batch, heads, tokens, width).
struct GlobalTensor {
  std::int64_t batch = 0, heads = 0, tokens = 0, width = 0;
  std::vector<float> values;
};

/// Gathers every rank's rows of a tensor, (batch, heads, rows, width), on rank 0; the others get an empty
/// one. Collective.
GlobalTensor gather(comm::Communicator& communicator, const plan::Problem& problem, plan::Tensor tensor,
                    const std::vector<float>& rows);

/// The elements of a View in row-major order as fp32, on the host.
template <class ViewType>
std::vector<float> to_floats(const ViewType& view) {
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
  std::vector<float> values(host.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(host.data()[i]);
  return values;
}

}  // namespace annulus::bench
