#pragma once

#include <string>
#include <string_view>

namespace annulus {

/// The text without what terminals take for commands, as names of files and tensors from elsewhere may have:
/// control characters (also those of the range U+0080 to U+009F), marks that turn the direction of writing,
/// and bytes that are no UTF-8 appear as "\x1b", line ends as "\n".
std::string printable(std::string_view text);

/// A printable message, which may have several lines: those after the first are indented, so that none of
/// them looks as if the program had begun it. The middle of more than 16 KiB is left out: bad input is
/// quoted, however large it is.
std::string printable_message(std::string_view text);

}  // namespace annulus
