// Masks in their text form, and block lists (docs/formats/block-mask.md). The first line is "TOKENS MASK",
// in which "@" stands for a file with the other lines.
#include <annulus/attention/sequence/mask.hpp>

#include "base/parse_number.hpp"
#include "memory_file.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace annulus;
  std::string_view text = fuzz::text_of(data, size), first = fuzz::take_line(text);
  const std::int64_t tokens = take_number<std::int64_t>(first).value_or(0);
  if (first.starts_with(' ')) first.remove_prefix(1);
  const fuzz::MemoryFile file(text);
  std::string mask_text(first);
  if (const std::size_t at = mask_text.find('@'); at != mask_text.npos) mask_text.replace(at, 1, file.path());

  Mask mask;
  if (!fuzz::accepts("the mask", [&] { mask = Mask::parse(mask_text, tokens, "the mask"); })) return 0;
  fuzz::expect(Mask::parse(mask.to_string(), tokens).to_string() == mask.to_string(),
               "the same mask from its text", mask_text);
  if (tokens > 4096) return 0;
  // Pairs of all rows are those of even and odd rows together.
  const PositionMap all{.hi = 1, .count = tokens}, even{.hi = 2, .count = (tokens + 1) / 2},
      odd{.base = 1, .hi = 2, .count = tokens / 2};
  const std::int64_t parts =
      mask.pairs(even, even) + mask.pairs(even, odd) + mask.pairs(odd, even) + mask.pairs(odd, odd);
  fuzz::expect(mask.pairs(all, all) == parts, "as many pairs in all as in the parts", mask_text);
  fuzz::expect(mask.is_empty(all, all) == (parts == 0), "an empty mask has no pairs", mask_text);
  return 0;
}
