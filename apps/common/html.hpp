#pragma once

#include <string>
#include <string_view>

/// What the pages that programs write have in common. They need nothing else: no script, no other file.
namespace annulus::app {

/// What `text` is inside XML and HTML, attributes too.
std::string escaped(std::string_view text);

/// A whole page, well-formed XML too. `title` is text, the others are HTML; `footer` says what wrote it.
std::string html_page(std::string_view title, std::string_view body, std::string_view footer);

/// A distance of ticks of the form 1, 2 or 5 times a power of ten that gives about ten of them on an axis.
double tick_distance(double length);

}  // namespace annulus::app
