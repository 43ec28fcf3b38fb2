#include "tables.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include <annulus/base/error.hpp>

#include "base/file.hpp"
#include "base/parse_number.hpp"
#include "html/element.hpp"
#include "html/page.hpp"
#include "html/table.hpp"

namespace annulus::report {

namespace {

using Row = std::vector<std::string>;

constexpr FileKind markdown{"a file of tables in Markdown", 16 * kinds::mib};

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

/// "| a | b |" as its cells.
Row cells_of(std::string_view line) {
  line.remove_prefix(1);
  if (line.ends_with('|')) line.remove_suffix(1);
  Row cells;
  while (true) {
    const std::size_t end = line.find('|');
    cells.emplace_back(trimmed(line.substr(0, end)));
    if (end == line.npos) break;
    line.remove_prefix(end + 1);
  }
  return cells;
}

/// Reads lines one after the other.
class Reader {
 public:
  explicit Reader(std::string origin) : origin_(std::move(origin)), sections_(1) {}

  void read(std::string_view line) {
    ++number_;
    line = trimmed(line);
    if (!line.starts_with('|')) end_table();
    if (line.empty()) {
      in_paragraph_ = false;
    } else if (line.starts_with("###")) {
      in_paragraph_ = false;
      sections_.push_back({.heading = std::string(trimmed(line.substr(3))), .blocks = {}});
    } else if (line.starts_with('|')) {
      add_row(cells_of(line));
    } else {
      add_text(line);
    }
  }
  std::vector<TableSection> end() {
    end_table();
    std::erase_if(sections_, [](const TableSection& of) { return of.heading.empty() && of.blocks.empty(); });
    return std::move(sections_);
  }

 private:
  std::vector<TableSection::Block>& blocks() { return sections_.back().blocks; }

  void add_text(std::string_view line) {
    if (!in_paragraph_)
      blocks().push_back({.paragraph = std::string(line), .table = {}});
    else
      blocks().back().paragraph += " " + std::string(line);
    in_paragraph_ = true;
  }
  void add_row(Row cells) {
    in_paragraph_ = false;
    if (rows_++ == 0) {
      blocks().push_back({.paragraph = {}, .table = {std::move(cells)}});
      return;
    }
    if (rows_ == 2) return;  // |---|---|
    std::vector<Row>& table = blocks().back().table;
    require(
        cells.size() <= table.front().size(),
        "{}:{}: a row of {} cells in a table of {} columns: write the file again, with one | between cells",
        origin_, number_, cells.size(), table.front().size());
    cells.resize(table.front().size());
    table.push_back(std::move(cells));
  }
  void end_table() {
    require(rows_ != 1, "{}:{}: a table of one line, which is cut off: write the file again", origin_,
            number_);
    rows_ = 0;
  }

  std::string origin_;
  std::vector<TableSection> sections_;
  std::int64_t number_ = 0;  // of the line
  int rows_ = 0;             // of the table under way
  bool in_paragraph_ = false;
};

/// Numbers to the right, longer texts in several lines.
html::Table::Align align_of(const std::vector<Row>& table, std::size_t column) {
  constexpr std::size_t longest_line = 48;
  bool numbers = true;
  std::size_t longest = 0;
  for (std::size_t row = 1; row < table.size(); ++row) {
    const std::string& cell = table[row][column];
    longest = std::max(longest, cell.size());
    numbers = numbers && (cell.empty() || cell == "–" || parse_number<double>(cell));
  }
  if (numbers) return html::Table::Align::number;
  return longest > longest_line ? html::Table::Align::prose : html::Table::Align::text;
}

std::string to_html(const std::vector<Row>& table) {
  std::vector<html::Table::Column> columns;
  for (std::size_t column = 0; column < table.front().size(); ++column)
    columns.push_back({table.front()[column], align_of(table, column)});
  html::Table made(std::move(columns));
  for (std::size_t row = 1; row < table.size(); ++row) made.add(table[row]);
  return made.to_html();
}

}  // namespace

std::vector<TableSection> parse_tables(std::string_view text, const std::string& origin) {
  Reader reader(origin);
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    reader.read(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return reader.end();
}

std::string tables_page(const std::vector<std::filesystem::path>& files) {
  std::string body;
  std::vector<std::string> names;
  for (const std::filesystem::path& file : files) {
    bool any = false;
    for (const TableSection& section : parse_tables(read_text(file, markdown), file.string())) {
      if (!section.heading.empty()) body += html::element("h2", section.heading) + "\n";
      for (const TableSection::Block& block : section.blocks) {
        any = any || !block.table.empty();
        body += block.table.empty() ? html::element("p", block.paragraph) + "\n" : to_html(block.table);
      }
    }
    require(any, "{}: there is no table in it: give a file of a script of apps/compare", file.string());
    names.push_back(file.stem().string());
  }
  const std::string title = fmt::format("{}", fmt::join(names, ", "));
  return html::to_text({.title = title,
                        .heading = title,
                        .subtitle = "tables of apps/compare",
                        .body = body,
                        .program = "annulus-report --tables"});
}

}  // namespace annulus::report
