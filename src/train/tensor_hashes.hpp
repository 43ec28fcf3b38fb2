#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/core/memory.hpp>
#include <annulus/core/pack.hpp>
#include <annulus/core/region.hpp>
#include <annulus/core/tensor.hpp>
#include <annulus/model/parameters.hpp>

namespace annulus::train {

/// Elements [begin, end) of a buffer, which belong to the tensor of this number.
struct TensorPiece {
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

/// 64 bits for each tensor of flat buffers, by which ranks find out whether they hold the same bits of it. A
/// hash is the sum, modulo 2^64, of a one-to-one function of each eight bytes and their place: a difference
/// in eight bytes always shows, one in several but for chance, and neither threads nor their order count.
template <class Exec>
class TensorHashes {
 public:
  /// Of buffers that hold the elements `pieces` of tensors, of which there are `tensors`.
  TensorHashes(const Exec& exec, std::size_t tensors, const std::vector<TensorPiece>& pieces)
      : tensors_(tensors) {
    std::vector<TensorPiece> chunks;
    for (const TensorPiece& piece : pieces) {
      for (std::int64_t begin = piece.begin; begin < piece.end; begin += chunk_size)
        chunks.push_back({begin, std::min(begin + chunk_size, piece.end), piece.tensor});
    }
    chunks_ = Owned<Array1<TensorPiece, Exec>>::uninitialized(
        exec, MemoryCategory::workspace, "annulus::train::chunks_of_tensors", chunks.size());
    sums_ = Owned<Array1<std::uint64_t, Exec>>::uninitialized(
        exec, MemoryCategory::workspace, "annulus::train::tensor_hashes", most_buffers * tensors_);
    const Kokkos::View<const TensorPiece*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged> on_host(chunks.data(),
                                                                                               chunks.size());
    Kokkos::deep_copy(exec, *chunks_, on_host);
    exec.fence("annulus::train::TensorHashes: the list of chunks on the host goes out of scope");
  }
  /// Of buffers in which the tensors lie as in the map.
  TensorHashes(const Exec& exec, const model::ParameterMap& map)
      : TensorHashes(exec, map.all().size(), pieces_of(map)) {}

  static constexpr std::size_t most_buffers = 3;

  /// Those of the first buffer, tensor by tensor, then those of the next; (buffers · tensors).
  template <class Element>
  std::vector<std::uint64_t> of(const Exec& exec,
                                std::initializer_list<Array1<const Element, Exec>> buffers) const {
    const Region region("annulus::train::hash_tensors");
    require(buffers.size() <= most_buffers, "hashes of {} buffers were asked for, {} at most", buffers.size(),
            most_buffers);
    Kokkos::deep_copy(exec, *sums_, std::uint64_t{0});
    std::size_t first = 0;
    for (const auto& buffer : buffers) {
      add<Element>(exec, buffer, first);
      first += tensors_;
    }
    std::vector<std::uint64_t> hashes(first);
    const Kokkos::View<std::uint64_t*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged> on_host(hashes.data(),
                                                                                           hashes.size());
    Kokkos::deep_copy(exec, on_host, Kokkos::subview(*sums_, std::pair<std::size_t, std::size_t>(0, first)));
    exec.fence("annulus::train::TensorHashes: the host reads the hashes");
    return hashes;
  }

  /// Public for nvcc, which wants to see the class that a kernel is written in.
  template <class Element>
  void add(const Exec& exec, const Array1<const Element, Exec>& values, std::size_t first) const {
    using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
    const auto chunks = *chunks_;
    const auto sums = *sums_;
    constexpr bool on_host = annulus::detail::host_memory<Exec>;
    const int threads = on_host ? 1 : 256;
    Kokkos::parallel_for(
        "annulus::train::hash_tensors",
        Kokkos::TeamPolicy<Exec>(exec, static_cast<int>(chunks.extent(0)), threads),
        KOKKOS_LAMBDA(const Member& team) {
          const TensorPiece chunk = chunks(team.league_rank());
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
  }

 private:
  // Enough work for a team to hide its start.
  static constexpr std::int64_t chunk_size = 16384;

  static std::vector<TensorPiece> pieces_of(const model::ParameterMap& map) {
    std::vector<TensorPiece> pieces;
    for (const model::Parameter& p : map.all())
      pieces.push_back({p.offset, p.offset + p.size(), std::ssize(pieces)});
    return pieces;
  }

  std::size_t tensors_;
  Owned<Array1<TensorPiece, Exec>> chunks_;
  Owned<Array1<std::uint64_t, Exec>> sums_;
};

}  // namespace annulus::train
