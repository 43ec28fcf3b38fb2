#pragma once

#include <string>
#include <string_view>

namespace annulus::data {

/// The document of a record: the string "text" of a JSON object.
struct JsonRecord {
  std::string text;
  std::string problem;  ///< why there is none, to follow "line 3: "; empty when there is
};

/// Reads one record. Nothing but the text is kept of it, however large the record is.
JsonRecord parse_record(std::string_view line);

/// `front`, the beginning of a file, is that of such a record (around 0), on any number of lines, or of a
/// JSON array whose first element is one (around 1). The record may go on behind `front`.
bool begins_with_record(std::string_view front, int around);

}  // namespace annulus::data
