#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>
#include <vector>

#include <annulus/base/kokkos/tensor.hpp>

#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "base/kokkos/pack.hpp"
#include "training/model/parameters.hpp"

namespace annulus::training {

/// Elements [begin, end) of a buffer, which belong to the tensor of this number.
struct TensorRange {
  std::int64_t begin, end, tensor;
};

namespace detail {

/// One to one in `word`, whatever the place, and not linear: what two places lose and gain does not cancel.
KOKKOS_FORCEINLINE_FUNCTION std::uint64_t hash_at(std::int64_t place, std::uint64_t word) {
  std::uint64_t x = word + static_cast<std::uint64_t>(place + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 32)) * 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 29);
}

}  // namespace detail

/// The tensors of a buffer in which they lie as in the map.
inline std::vector<TensorRange> pieces_of(const model::ParameterMap& map) {
  std::vector<TensorRange> pieces;
  for (const model::Parameter& p : map.all())
    pieces.push_back({p.offset, p.offset + p.size(), std::ssize(pieces)});
  return pieces;
}

/// 64 bits for each tensor of flat buffers, by which ranks find out whether they hold the same bits of it:
/// those of the first buffer, tensor by tensor, then those of the next; (buffers · tensors). `pieces`: of
/// `tensors` tensors, in each buffer. A hash is the sum, modulo 2^64, of a one-to-one function of each eight
/// bytes and their place: a difference in eight bytes always shows, one in several but for chance, and
/// neither threads nor their order count.
template <class Element, class Exec>
std::vector<std::uint64_t> tensor_hashes(
    const Exec& exec, std::size_t tensors, const std::vector<TensorRange>& pieces,
    std::initializer_list<std::type_identity_t<Array1<const Element, Exec>>> buffers) {
  const Region region("annulus::training::hash_tensors");
  constexpr std::int64_t chunk_size = 16384;  // enough work for a team to hide its start
  std::vector<TensorRange> list;
  for (const TensorRange& piece : pieces)
    for (std::int64_t begin = piece.begin; begin < piece.end; begin += chunk_size)
      list.push_back({begin, std::min(begin + chunk_size, piece.end), piece.tensor});
  std::vector<std::uint64_t> hashes(buffers.size() * tensors);
  const auto owned_chunks = Owned<Array1<TensorRange, Exec>>::uninitialized(
      exec, MemoryCategory::workspace, "annulus::training::chunks_of_tensors", list.size());
  const auto owned_sums = Owned<Array1<std::uint64_t, Exec>>::zeroed(
      exec, MemoryCategory::workspace, "annulus::training::tensor_hashes", hashes.size());
  const Array1<TensorRange, Exec> chunks = *owned_chunks;
  const Array1<std::uint64_t, Exec> sums = *owned_sums;
  using Unmanaged = Kokkos::MemoryUnmanaged;
  Kokkos::deep_copy(exec, chunks,
                    Kokkos::View<const TensorRange*, Kokkos::HostSpace, Unmanaged>(list.data(), list.size()));
  std::size_t first = 0;
  for (const auto& values : buffers) {
    using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
    constexpr bool on_host = annulus::detail::host_memory<Exec>;
    Kokkos::parallel_for(
        "annulus::training::hash_tensors",
        Kokkos::TeamPolicy<Exec>(exec, static_cast<int>(list.size()), on_host ? 1 : 256),
        KOKKOS_LAMBDA(const Member& team) {
          const TensorRange chunk = chunks(team.league_rank());
          // Known to the compiler where it is one thread, so that the loop becomes vector code.
          const int rank = on_host ? 0 : team.team_rank(), size = on_host ? 1 : team.team_size();
          const auto bits = [&](std::int64_t begin, std::size_t bytes) {
            std::uint64_t word = 0;
            memcpy(&word, &values(begin), bytes);
            return word;
          };
          constexpr std::int64_t width = 8 / sizeof(Element);
          const std::int64_t whole = chunk.begin + (chunk.end - chunk.begin) / width * width;
          std::uint64_t sum = 0;
          for (std::int64_t i = chunk.begin + width * rank; i < whole; i += width * size)
            sum += detail::hash_at(i, bits(i, 8));
          if (whole < chunk.end && rank == 0)
            sum += detail::hash_at(
                whole, bits(whole, static_cast<std::size_t>(chunk.end - whole) * sizeof(Element)));
          team.team_reduce(Kokkos::Sum<std::uint64_t>(sum));
          if (rank == 0) Kokkos::atomic_add(&sums(first + static_cast<std::size_t>(chunk.tensor)), sum);
        });
    first += tensors;
  }
  Kokkos::deep_copy(
      exec, Kokkos::View<std::uint64_t*, Kokkos::HostSpace, Unmanaged>(hashes.data(), hashes.size()), sums);
  exec.fence("annulus::training::tensor_hashes: the host reads the hashes, and the list of chunks goes");
  return hashes;
}

}  // namespace annulus::training
