#include "distributed/agreement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include <annulus/base/error.hpp>

namespace annulus::distributed {

namespace {

comm::Queue host() {
  return comm::Queue(Kokkos::DefaultHostExecutionSpace());
}

/// FNV-1a, 64 bits.
class Fingerprint {
 public:
  void add(std::string_view text) {
    for (const char c : text) value_ = (value_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

std::string numbers(std::span<const std::int64_t> values) {
  return fmt::format("{}", fmt::join(values, ","));
}

}  // namespace

std::string describe(const plan::Problem& p) {
  std::string topology;
  for (int rank = 0; rank < p.topology.ranks(); ++rank) topology += fmt::format("{} ", p.topology.node(rank));
  return fmt::format(
      "ranks on nodes {}, context groups of {} {}, layout {}, {} tokens, mask {}, documents at {}, block "
      "rows {}, block columns {}, "
      "{} heads, "
      "{} kv heads, head_dim {}, batch {}, {}",
      topology, p.grid.heads, name_of(p.grid.placement), p.layout.to_string(), p.mask.tokens(),
      p.mask.to_string(), numbers(p.mask.document_starts()), numbers(p.mask.block_row_starts()),
      numbers(p.mask.block_columns()), p.heads, p.kv_heads, p.head_dim, p.batch, name_of(p.activation));
}

void throw_together(comm::Communicator& communicator, const std::string& problem) {
  const auto failed =
      communicator.all_reduce_value<std::int64_t>(problem.empty() ? 0 : 1, comm::ReduceOp::max);
  if (failed == 0) return;
  constexpr std::size_t length = 2048;  // of a message; longer ones are cut
  std::array<char, length> mine{};
  std::copy_n(problem.begin(), std::min(problem.size(), length - 1), mine.begin());
  std::vector<char> all(length * static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(host(), mine.data(), all.data(), length);
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const char* text = all.data() + length * static_cast<std::size_t>(rank);
    if (*text != '\0') fail("{} (found on rank {})", text, rank);
  }
}

void require_equal(comm::Communicator& communicator, const std::string& text, const char* what) {
  Fingerprint fingerprint;
  fingerprint.add(text);
  const std::uint64_t mine = fingerprint.value();
  std::vector<std::uint64_t> all(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(host(), &mine, all.data(), sizeof mine);
  std::string problem;
  if (all.front() != mine) {
    problem = fmt::format(
        "ranks disagree about {}: rank {} has '{}', rank 0 another; give every rank the same configuration",
        what, communicator.rank(), text);
  }
  throw_together(communicator, problem);
}

}  // namespace annulus::distributed
