#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace annulus {

/// The documents that fill a sequence.
struct DocumentList {
  std::int64_t tokens = 0;           ///< of the sequence
  std::vector<std::int64_t> starts;  ///< increasing from 0, as Mask::with_documents takes them
};

/// Reads the lengths of documents in tokens, in the order in which they stand in the sequence: one a line;
/// empty lines, and what stands behind a #, are passed over. Throws Error naming `field`, file and line.
DocumentList read_document_list(const std::string& file, std::string_view field);

}  // namespace annulus
