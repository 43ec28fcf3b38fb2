// Patterns of sparse attention (docs/sparsity.md). The first line is "TOKENS LENGTH…": a sequence, and its
// documents by their lengths, the last of which takes the rest; the second line is the pattern.
#include <algorithm>
#include <cstdint>
#include <vector>

#include <annulus/attention/sparsity/options.hpp>

#include "attention/sparsity/selection_memory.hpp"
#include "base/parse_number.hpp"
#include "fuzz.hpp"

namespace {

std::int64_t take_length(std::string_view& line, std::int64_t most) {
  const std::int64_t length = annulus::take_number<std::int64_t>(line).value_or(0);
  if (!line.empty()) line.remove_prefix(1);
  return std::clamp<std::int64_t>(length, 1, most);
}

void expect_share(double share, std::string_view pattern) {
  annulus::fuzz::expect(share >= 0 && share <= 1, "a share of the pairs from 0 to 1", pattern);
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace annulus;
  std::string_view rest = fuzz::text_of(data, size), lengths = fuzz::take_line(rest);
  const std::string_view text = fuzz::take_line(rest);
  // Densities take a time by the number of blocks, with sanitizers seconds for 2³¹ tokens.
  const std::int64_t tokens = take_length(lengths, std::int64_t{1} << 26);
  std::vector<std::int64_t> starts{0};
  while (!lengths.empty() && starts.back() < tokens) {
    const std::int64_t start = starts.back() + take_length(lengths, tokens);
    if (start < tokens) starts.push_back(start);
  }
  const bool packed = starts.size() > 1;

  sparsity::PatternOptions options;
  const auto parse = [&] { options = sparsity::PatternOptions::parse(text, "the pattern"); };
  if (!fuzz::accepts("the pattern", parse)) return 0;
  const std::string written = options.to_string();
  const auto again = sparsity::PatternOptions::parse(written, "written");
  fuzz::expect(again == options && again.to_string() == written, "the same pattern from what was written",
               written);
  if (!fuzz::accepts("the pattern", [&] { options.check(tokens, "the pattern", packed); })) return 0;

  expect_share(sparsity::predicted_density(options, tokens), written);
  expect_share(sparsity::predicted_density(options, tokens, starts), written);
  const sparsity::SelectionForm form = sparsity::selection_form(options, tokens, packed);
  fuzz::expect(form.block > 0 && form.block % sparsity::block_tokens == 0, "whole blocks", written);
  fuzz::expect(form.columns >= 0 && form.columns <= tokens, "columns of the sequence", written);
  const auto top = sparsity::top_blocks(options, tokens);
  fuzz::expect(top.has_value() == form.of_queries, "blocks of each query where their form says so", written);
  for (const bool keeps : {false, true}) {
    const sparsity::SelectionMemory memory = sparsity::selection_memory(options, {.tokens = tokens,
                                                                                  .rows = (tokens + 1) / 2,
                                                                                  .heads = 4,
                                                                                  .kv_heads = 2,
                                                                                  .packed = packed,
                                                                                  .keeps_columns = keeps});
    fuzz::expect(memory.kept >= 0 && memory.workspace >= 0 && memory.communication >= 0, "bytes", written);
  }
  return 0;
}
