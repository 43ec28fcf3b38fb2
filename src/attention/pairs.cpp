#include <annulus/attention/pairs.hpp>

#include <Kokkos_Core.hpp>
#include <numeric>

#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>

namespace annulus::attention {

namespace pairs_detail {  // named: device compilers want lambdas and their captures to have linkage

/// Keys of query `q`.
KOKKOS_INLINE_FUNCTION std::int64_t keys_of(const MaskRule& mask, std::int64_t q, const KeyPositions& keys) {
  const KeyRange range = mask.keys(q);
  const auto between = [&](std::int64_t begin, std::int64_t end) {
    if (begin < range.begin) begin = range.begin;
    if (end > range.end) end = range.end;
    return begin < end ? keys.rows_below(end) - keys.rows_below(begin) : 0;
  };
  const std::int64_t all = between(range.begin, range.end);
  if (all == 0 || mask.block_row_starts == nullptr) return all;
  const std::int64_t row = q / mask.block_size;
  std::int64_t listed = 0;
  for (std::int64_t i = mask.block_row_starts[row]; i < mask.block_row_starts[row + 1]; ++i) {
    const std::int64_t begin = mask.block_columns[i] * mask.block_size;
    listed += between(begin, begin + mask.block_size);
  }
  return mask.blocks_excluded ? all - listed : listed;
}

}  // namespace pairs_detail

template <class Exec>
void count_pairs(const Exec& exec, const PairsOf& what, std::int64_t* count) {
  require(what.mask.dilation == 1, "pairs of a mask with dilation {} are not counted on the device",
          what.mask.dilation);
  constexpr std::int64_t rows_of_team = 128;
  const std::int64_t rows = what.q_positions.count, teams = ceil_divide(rows, rows_of_team);
  if (rows == 0 || what.keys.empty() || what.heads == 0) return;
  // Heads that have a block list and a list of keys in common have the same pairs.
  const std::int64_t group = what.key_heads > 0 ? what.heads / what.key_heads : what.heads;
  const std::int64_t of_list = what.mask.lists_of_heads() ? what.mask.heads_of_list : what.heads;
  const std::int64_t alike = what.keys.listed != nullptr ? std::gcd(of_list, group) : of_list;
  using Policy = Kokkos::TeamPolicy<Exec>;
  Kokkos::parallel_for(
      "annulus::attention::count_pairs",
      Policy(exec, static_cast<int>(what.heads / alike * teams), Kokkos::AUTO),
      KOKKOS_LAMBDA(const typename Policy::member_type& team) {
        const std::int64_t head = team.league_rank() / teams * alike;
        const std::int64_t first = team.league_rank() % teams * rows_of_team;
        const std::int64_t end = first + rows_of_team < rows ? first + rows_of_team : rows;
        const MaskRule mask = what.mask.of_head(head);
        KeyPositions keys = what.keys;
        if (keys.listed != nullptr) keys.listed += head / group * keys.count();
        std::int64_t pairs = 0;
        Kokkos::parallel_reduce(
            Kokkos::TeamThreadRange(team, first, end),
            [&](const std::int64_t row, std::int64_t& sum) {
              sum += pairs_detail::keys_of(mask, what.q_positions(row), keys);
            },
            pairs);
        Kokkos::single(Kokkos::PerTeam(team), [&] { Kokkos::atomic_add(count, alike * pairs); });
      });
}

template void count_pairs(const HostExec&, const PairsOf&, std::int64_t*);
#if defined(KOKKOS_ENABLE_CUDA) || defined(KOKKOS_ENABLE_HIP) || defined(KOKKOS_ENABLE_SYCL)
template void count_pairs(const Kokkos::DefaultExecutionSpace&, const PairsOf&, std::int64_t*);
#endif

}  // namespace annulus::attention
