#pragma once

#include <annulus/attention/comm/communicator.hpp>
#include <cstddef>
#include <cstdint>

namespace annulus::comm {

/// `inner`, which moves memory of the host, made to take memory of devices too: it passes through pinned host
/// memory, in chunks, of which one is copied while another travels. Every transport that reads host memory
/// alone (null, loopback, an MPI that is not CUDA-aware) serves devices by it; on queues of the host it adds
/// nothing. `inner` itself where Kokkos knows no device.
///
/// Exchanges are copied by queues of their own, so that kernels that are enqueued afterwards do not hold them
/// up; the host lets chunks go whenever it waits for an exchange or calls progress(). After wait() what the
/// queue does next sees the data; the host does not wait for the copy. Collectives wait for their data.
std::unique_ptr<Communicator> staged(std::unique_ptr<Communicator> inner);

/// What a rank has under way at once in exchanges, but for those of collectives: sends and receives.
struct ExchangeLoad {
  std::int64_t messages = 0;
  std::size_t bytes = 0;  ///< of all of them

  /// Enough for both.
  void cover(const ExchangeLoad& other);
};

/// A communicator whose exchanges pass through pinned memory.
class StagesExchanges {
 public:
  virtual ~StagesExchanges() = default;
  virtual void reserve(const ExchangeLoad& load) = 0;
};

/// Reserves pinned memory where exchanges of `communicator` pass through it: those with no more messages and
/// bytes under way, of whatever sizes, then take no more. Does nothing for other communicators.
void reserve_staging(Communicator& communicator, const ExchangeLoad& load);
/// Bytes that it reserves (MemoryCategory::communication, of the host).
std::int64_t staging_memory(const ExchangeLoad& load);

}  // namespace annulus::comm
