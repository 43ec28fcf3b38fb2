// Lists of documents (docs/planning.md), and the cut that the layout `balanced` makes of them. The first line
// is "RANKS RANKS_PER_NODE MASK".
#include "attention/sequence/document_list.hpp"

#include <algorithm>
#include <vector>

#include <annulus/attention/plan/plan.hpp>
#include <annulus/attention/sequence/layout.hpp>
#include <annulus/attention/sequence/mask.hpp>

#include "attention/plan/validate/partition.hpp"
#include "base/parse_number.hpp"
#include "memory_file.hpp"

namespace {

int take_count(std::string_view& line) {
  const int count = annulus::take_number<int>(line).value_or(0);
  if (line.starts_with(' ')) line.remove_prefix(1);
  return count;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace annulus;
  std::string_view text = fuzz::text_of(data, size), first = fuzz::take_line(text);
  const int ranks = std::clamp(take_count(first), 1, 64),
            ranks_per_node = std::clamp(take_count(first), 0, 64);
  const fuzz::MemoryFile file(text);
  DocumentList list;
  if (!fuzz::accepts("--documents", [&] { list = read_document_list(file.path(), "--documents"); })) return 0;
  fuzz::expect(list.starts.front() == 0 && std::ranges::is_sorted(list.starts, std::ranges::less_equal()),
               "starts that increase from 0");
  Mask mask;
  const auto read_mask = [&] { mask = Mask::with_documents(first, list.tokens, list.starts, "the mask"); };
  if (!fuzz::accepts("the mask", read_mask)) return 0;
  Layout layout(Layout::Kind::balanced);
  const auto cut = [&] { layout = layout.for_mask(mask, ranks, ranks_per_node); };
  if (!fuzz::accepts("layout balanced", cut)) return 0;
  std::vector<PositionMap> shards;
  for (int rank = 0; rank < ranks; ++rank) {
    shards.push_back(layout.shard(list.tokens, ranks, rank));
    fuzz::expect(shards.back().count == list.tokens / ranks + (rank < list.tokens % ranks ? 1 : 0),
                 "as many rows on every rank");
  }
  fuzz::expect(plan::partition_violations(list.tokens, shards).empty(), "every position on one rank");
  if (list.tokens > 4096) return 0;
  const PositionMap all = Layout().shard(list.tokens, 1, 0);
  for (int rank = 0; rank < ranks; ++rank)
    fuzz::expect(mask.pairs(shards[std::size_t(rank)], all) == layout.cut_pairs()[std::size_t(rank)],
                 "the pairs that the cut has counted");
  return 0;
}
