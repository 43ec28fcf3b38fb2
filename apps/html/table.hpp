#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace annulus::html {

/// A table that scrolls sideways inside the page where it is wider; its first column stays in sight.
class Table {
 public:
  enum class Align : std::uint8_t {
    number,  ///< to the right
    text,    ///< to the left
    prose    ///< to the left, in several lines
  };
  struct Column {
    std::string heading;
    Align align = Align::number;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// Text of every column.
  void add(const std::vector<std::string>& cells);

  std::string to_html() const;

 private:
  std::vector<Column> columns_;
  std::string rows_;
};

}  // namespace annulus::html
