#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace annulus::report {

/// What stands under one heading of a Markdown file as the scripts of apps/compare write it.
struct TableSection {
  std::string heading;  ///< text; empty before the first
  /// Paragraphs and tables in their order. A table has its headings as the first row.
  struct Block {
    std::string paragraph;
    std::vector<std::vector<std::string>> table;  ///< empty: a paragraph
  };
  std::vector<Block> blocks;
};

/// Takes the text of such a file apart: headings begin with ###, rows of tables with |, and paragraphs end
/// with an empty line. Throws Error that names `origin` and the line where a row has more cells than its
/// table, or a table is cut off before its second line.
std::vector<TableSection> parse_tables(std::string_view text, const std::string& origin);

/// A page that needs nothing else, with all sections of several such files. Throws Error where one cannot be
/// read, or has no table.
std::string tables_page(const std::vector<std::filesystem::path>& files);

}  // namespace annulus::report
