#include "attention/sparsity/host_pairs.hpp"

#include <Kokkos_Core.hpp>
#include <algorithm>

#include "attention/kernels/pairs.hpp"
#include "attention/sparsity/bits.hpp"
#include "base/kokkos/instantiate.hpp"

namespace annulus::sparsity {

namespace {

template <class View>
std::vector<typename View::non_const_value_type> on_host(const View& view) {
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
  return {host.data(), host.data() + host.size()};
}

}  // namespace

template <class Exec>
HostPairs::HostPairs(const Exec& exec, const Selection<Exec>& selection)
    : batch_(selection.batch),
      heads_(selection.heads),
      group_(selection.heads / selection.lists),
      most_columns_(selection.most_columns()) {
  const Lists<Exec> lists = expand(exec, selection);
  const auto count = Owned<Array1<std::int64_t, Exec>>::zeroed(exec, MemoryCategory::workspace,
                                                               "annulus::sparsity::pairs_of_selection", 1);
  count_selected<Exec>(exec, selection, selection.tokens, count.view().data());
  exec.fence("annulus::sparsity::HostPairs: the lists go to the host");
  row_starts_ = on_host(lists.row_starts.view());
  block_columns_ = on_host(lists.block_columns.view());
  columns_ = on_host(lists.columns.view());
  pairs_ = on_host(count.view()).front();
  if (selection.documents != nullptr && selection.documents->packed()) {
    for (std::int64_t set = 0; set < selection.documents->sets(); ++set) {
      const auto starts = selection.documents->of_set(set);
      document_sets_.emplace_back(starts.begin(), starts.end());
    }
  }
  blocks_.tokens = selection.tokens;
  blocks_.right = 0;
  blocks_.block_size = lists.block;
  blocks_.block_lists = selection.all_lists();
  blocks_.heads_of_list = lists.heads_of_list;
  if (lists.query_blocks != nullptr) {
    query_blocks_ = on_host(selection.blocks.view());
    blocks_.query_blocks = query_blocks_.data();
  } else {
    blocks_.block_row_starts = row_starts_.data();
    blocks_.block_columns = block_columns_.data();
  }
}

std::int64_t HostPairs::block_pairs(const PositionMap& q, const PositionMap& k, plan::HeadRange heads) const {
  std::int64_t pairs = 0;
  for (std::int64_t b = 0; b < batch_; ++b) {
    // Heads that share a list have its pairs alike.
    for (std::int64_t head = heads.begin; head < heads.end;) {
      const std::int64_t next = std::min<std::int64_t>((head / group_ + 1) * group_, heads.end);
      std::int64_t of_list = 0;
      attention::count_pairs(HostExec(), {of_head(b * heads_ + head), q, {k}, 1}, &of_list);
      pairs += of_list * (next - head);
      head = next;
    }
  }
  return pairs;
}

namespace flags {

namespace {

/// (batch, lists, rows): is_set(list of all, position) of each row.
template <class Exec, class IsSet>
Array3<std::uint8_t, HostExec> of_rows(const Selection<Exec>& selection, const PositionMap& rows,
                                       const IsSet& is_set) {
  const Array3<std::uint8_t, HostExec> flags("annulus::sparsity::flags", selection.batch, selection.lists,
                                             rows.count);
  for (std::int64_t list = 0; list < selection.all_lists(); ++list)
    for (std::int64_t row = 0; row < rows.count; ++row)
      flags(list / selection.lists, list % selection.lists, row) = is_set(list, rows(row)) ? 1 : 0;
  return flags;
}

}  // namespace

template <class Exec>
Array3<std::uint8_t, HostExec> columns(const Exec& exec, const Selection<Exec>& selection,
                                       const PositionMap& rows) {
  exec.fence("annulus::sparsity::flags: the columns go to the host");
  const auto columns = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), selection.columns.view());
  return of_rows(selection, rows, [&](std::int64_t list, std::int64_t position) {
    const std::int32_t* const first = columns.data() + list * selection.most_columns();
    return std::binary_search(first, first + selection.most_columns(), position);
  });
}

template <class Exec>
Array3<std::uint8_t, HostExec> slashes(const Exec& exec, const Selection<Exec>& selection,
                                       const PositionMap& rows) {
  exec.fence("annulus::sparsity::flags: the slashes go to the host");
  const auto blocks = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), selection.blocks.view());
  return of_rows(selection, rows, [&](std::int64_t list, std::int64_t position) {
    return bit_of(&blocks(list, 0, 0), position / block_tokens);
  });
}

namespace {

/// Sets the bits of a query's block columns first … end − 1 in its bytes.
void set_columns(std::uint8_t* bytes, std::int64_t first, std::int64_t end) {
  for (std::int64_t column = first; column < end; ++column)
    bytes[column / 8] |= static_cast<std::uint8_t>(1u << (column % 8));
}

/// The bits of queries, in blocks of block_tokens up to the own one.
template <class Exec>
void set_blocks_of_queries(const Selection<Exec>& selection, const PositionMap& rows,
                           const Array4<std::uint8_t, HostExec>& flags) {
  const auto words = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), selection.blocks.view());
  const std::int64_t columns = selection.block / block_tokens;  // of a block
  for (std::int64_t list = 0; list < selection.all_lists(); ++list)
    for (std::int64_t row = 0; row < rows.count; ++row)
      for_each_bit_below(&words(list, rows(row), 0), selection.pattern_blocks(), [&](std::int64_t block) {
        set_columns(&flags(list / selection.lists, list % selection.lists, row, 0), block * columns,
                    std::min((block + 1) * columns, rows(row) / block_tokens + 1));
      });
}

}  // namespace

template <class Exec>
Array4<std::uint8_t, HostExec> blocks(const Exec& exec, const Selection<Exec>& selection,
                                      const PositionMap& rows) {
  const std::int64_t block_rows = selection.block_rows();
  const Lists<Exec> lists = expand(exec, selection);
  exec.fence("annulus::sparsity::flags: the blocks go to the host");
  const std::vector<std::int64_t> starts = on_host(lists.row_starts.view()),
                                  columns = on_host(lists.block_columns.view());
  const Array4<std::uint8_t, HostExec> flags("annulus::sparsity::flags", selection.batch, selection.lists,
                                             rows.count, ceil_divide(block_rows, std::int64_t{8}));
  if (selection.pattern_rows == PatternRows::of_query) {
    set_blocks_of_queries(selection, rows, flags);
    return flags;
  }
  for (std::int64_t list = 0; list < selection.all_lists(); ++list) {
    for (std::int64_t row = 0; row < rows.count; ++row) {
      const std::int64_t start = list * (block_rows + 1) + rows(row) / block_tokens;
      std::uint8_t* const bytes = &flags(list / selection.lists, list % selection.lists, row, 0);
      for (std::int64_t i = starts[start]; i < starts[start + 1]; ++i)
        set_columns(bytes, columns[i], columns[i] + 1);
    }
  }
  return flags;
}

}  // namespace flags

#define ANNULUS_INSTANTIATE(EXEC)                                                             \
  template HostPairs::HostPairs(const EXEC&, const Selection<EXEC>&);                         \
  template Array3<std::uint8_t, HostExec> flags::columns(const EXEC&, const Selection<EXEC>&, \
                                                         const PositionMap&);                 \
  template Array3<std::uint8_t, HostExec> flags::slashes(const EXEC&, const Selection<EXEC>&, \
                                                         const PositionMap&);                 \
  template Array4<std::uint8_t, HostExec> flags::blocks(const EXEC&, const Selection<EXEC>&,  \
                                                        const PositionMap&);
ANNULUS_ON_HOST_AND_DEVICE(ANNULUS_INSTANTIATE)
#undef ANNULUS_INSTANTIATE

}  // namespace annulus::sparsity
