#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include <annulus/core/memory.hpp>
#include <annulus/core/pack.hpp>
#include <annulus/core/region.hpp>
#include <annulus/core/tensor.hpp>
#include <annulus/model/parameters.hpp>

namespace annulus::train {

namespace detail {

/// Elements [begin, end) of one tensor: what a team hashes.
struct TensorChunk {
  std::int64_t begin, end, tensor;
};

/// One to one in `pair`, whatever the place, and not linear: what two places lose and gain does not cancel.
KOKKOS_FORCEINLINE_FUNCTION std::uint64_t hash_at(std::int64_t place, std::uint64_t pair) {
  std::uint64_t x = pair + static_cast<std::uint64_t>(place + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 32)) * 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 29);
}

}  // namespace detail

/// 64 bits for each tensor of a flat buffer, by which ranks find out whether they hold the same bits of it.
/// A hash is the sum, modulo 2^64, of a one-to-one function of each pair of neighbours and its place: a
/// difference in one pair always shows, one in several but for chance, and neither threads nor their order
/// count.
template <class Exec>
class TensorHashes {
 public:
  TensorHashes(const Exec& exec, const model::ParameterMap& map) : tensors_(map.all().size()) {
    std::vector<detail::TensorChunk> chunks;
    for (std::size_t tensor = 0; tensor < tensors_; ++tensor) {
      const model::Parameter& p = map.all()[tensor];
      const std::int64_t end = p.offset + p.size();
      for (std::int64_t begin = p.offset; begin < end; begin += chunk_size)
        chunks.push_back({begin, std::min(begin + chunk_size, end), static_cast<std::int64_t>(tensor)});
    }
    chunks_ = Owned<Array1<detail::TensorChunk, Exec>>::uninitialized(
        exec, MemoryCategory::workspace, "annulus::train::chunks_of_tensors", chunks.size());
    sums_ = Owned<Array1<std::uint64_t, Exec>>::uninitialized(
        exec, MemoryCategory::workspace, "annulus::train::tensor_hashes", buffers * tensors_);
    const Kokkos::View<const detail::TensorChunk*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged> on_host(
        chunks.data(), chunks.size());
    Kokkos::deep_copy(exec, *chunks_, on_host);
    exec.fence("annulus::train::TensorHashes: the list of chunks on the host goes out of scope");
  }

  static constexpr std::size_t buffers = 3;

  /// Those of the first buffer, tensor by tensor, then those of the next; (buffers · tensors).
  std::vector<std::uint64_t> of(const Exec& exec,
                                const std::array<Array1<const float, Exec>, buffers>& flat) const {
    const Region region("annulus::train::hash_tensors");
    Kokkos::deep_copy(exec, *sums_, std::uint64_t{0});
    for (std::size_t b = 0; b < buffers; ++b) add(exec, flat[b], b * tensors_);
    std::vector<std::uint64_t> hashes(buffers * tensors_);
    const Kokkos::View<std::uint64_t*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged> on_host(hashes.data(),
                                                                                           hashes.size());
    Kokkos::deep_copy(exec, on_host, *sums_);
    exec.fence("annulus::train::TensorHashes: the host reads the hashes");
    return hashes;
  }

  /// Public for nvcc, which wants to see the class that a kernel is written in.
  void add(const Exec& exec, const Array1<const float, Exec>& values, std::size_t first) const {
    using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
    const auto chunks = *chunks_;
    const auto sums = *sums_;
    constexpr bool on_host = annulus::detail::host_memory<Exec>;
    const int threads = on_host ? 1 : 256;
    Kokkos::parallel_for(
        "annulus::train::hash_tensors",
        Kokkos::TeamPolicy<Exec>(exec, static_cast<int>(chunks.extent(0)), threads),
        KOKKOS_LAMBDA(const Member& team) {
          const detail::TensorChunk chunk = chunks(team.league_rank());
          // Known to the compiler where it is one thread, so that the loop becomes vector code.
          const int rank = on_host ? 0 : team.team_rank(), size = on_host ? 1 : team.team_size();
          const auto bits = [&](std::int64_t begin, std::size_t bytes) {
            std::uint64_t word = 0;
            memcpy(&word, &values(begin), bytes);
            return word;
          };
          const std::int64_t paired = chunk.begin + (chunk.end - chunk.begin) / 2 * 2;
          std::uint64_t sum = 0;
          for (std::int64_t i = chunk.begin + 2 * rank; i < paired; i += 2 * size)
            sum += detail::hash_at(i, bits(i, 8));
          if (paired < chunk.end && rank == 0) sum += detail::hash_at(paired, bits(paired, 4));
          team.team_reduce(Kokkos::Sum<std::uint64_t>(sum));
          if (rank == 0) Kokkos::atomic_add(&sums(first + static_cast<std::size_t>(chunk.tensor)), sum);
        });
  }

 private:
  // Enough work for a team to hide its start.
  static constexpr std::int64_t chunk_size = 16384;

  std::size_t tensors_;
  Owned<Array1<detail::TensorChunk, Exec>> chunks_;
  Owned<Array1<std::uint64_t, Exec>> sums_;
};

}  // namespace annulus::train
