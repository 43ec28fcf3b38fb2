#pragma once

#include <string>
#include <string_view>

namespace annulus::html {

/// The parts of a page.
struct Page {
  std::string_view title;     ///< text: of the window
  std::string_view heading;   ///< text
  std::string_view subtitle;  ///< text: what the page is about
  std::string_view body;      ///< HTML
  std::string_view program;   ///< text: what wrote it; the footer adds the version
};

/// A whole page, well-formed XML too, for light and dark colour schemes. It needs nothing else: no script, no
/// other file.
std::string to_text(const Page& page);

}  // namespace annulus::html
