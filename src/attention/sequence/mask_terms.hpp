#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace annulus::detail {

/// The text form of a mask, term by term, before it meets a sequence.
struct MaskTerms {
  struct WindowTerm {
    std::int64_t left, right;
  };
  struct DilatedTerm {
    std::int64_t width, distance;
  };
  struct DocumentsTerm {
    std::vector<std::int64_t> starts;  ///< empty for `documents` alone: the data give the boundaries
  };
  struct BlocksTerm {
    std::int64_t size;
    std::string file;
  };

  bool full = false, causal = false;
  std::optional<WindowTerm> window;
  std::optional<DilatedTerm> dilated;
  std::optional<DocumentsTerm> documents;
  std::optional<BlocksTerm> blocks;
};

/// Reads the text form. Throws Error naming `field` and the term.
MaskTerms parse_mask_terms(std::string_view text, std::string_view field);

/// The inverse of parse_mask_terms: joined terms in a fixed order.
std::string to_string(const MaskTerms& terms);

/// to_string without start offsets of documents and without the file of the block list.
std::string outline(MaskTerms terms);

/// `text` as error messages quote it: lists of a thousand documents are cut.
std::string abbreviated(std::string_view text);

}  // namespace annulus::detail
