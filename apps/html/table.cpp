#include "html/table.hpp"

#include <fmt/format.h>

#include <annulus/base/error.hpp>

#include "html/element.hpp"

namespace annulus::html {

namespace {

std::string cell(std::string_view tag, Table::Align align, std::string_view text) {
  constexpr std::string_view classes[] = {"", " class=\"text\"", " class=\"prose\""};
  return fmt::format("<{0}{1}>{2}</{0}>", tag, classes[static_cast<std::size_t>(align)], escaped(text));
}

}  // namespace

void Table::add(const std::vector<std::string>& cells) {
  require(cells.size() == columns_.size(), "a row of {} cells for a table of {} columns", cells.size(),
          columns_.size());
  rows_ += "<tr>";
  for (std::size_t i = 0; i < cells.size(); ++i) rows_ += cell("td", columns_[i].align, cells[i]);
  rows_ += "</tr>\n";
}

std::string Table::to_html() const {
  std::string head;
  for (const Column& column : columns_) {
    head += cell("th", column.align == Align::number ? Align::number : Align::text, column.heading);
  }
  return fmt::format(
      "<div class=\"scroll\">\n<table>\n<thead><tr>{}</tr></thead>\n<tbody>\n{}</tbody>\n</table>\n</div>\n",
      head, rows_);
}

}  // namespace annulus::html
