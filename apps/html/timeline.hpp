#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "html/palette.hpp"

namespace annulus::html {

/// Something that lasts from one time to another; seconds.
struct Span {
  double start = 0, end = 0;
  Colour colour = Colour::blue;
  std::string label = {};  ///< inside the bar, where there is room for it
  std::string title;       ///< shown on hovering, before the times
};

/// A drawing of what happens when: time in ms from left to right; groups of rows of lanes from top to bottom,
/// in the order in which they are added.
class TimelineDrawing {
 public:
  /// `seconds`: the length of the time axis.
  explicit TimelineDrawing(double seconds);

  /// A line across with a name; the rows that follow belong to it.
  void add_group(std::string_view name);
  /// A name on the left; the lanes that follow belong to it.
  void add_row(std::string_view name);
  /// A tall lane; of spans that overlap in time the last lies on top.
  void add_lane(std::string_view name, const std::vector<Span>& spans);
  /// A lane as high as spans overlap in time: those lie below one another.
  void add_stacked_lane(std::string_view name, std::vector<Span> spans);

  /// An SVG element.
  std::string to_svg(std::string_view title) const;

 private:
  double x(double seconds) const;
  std::string axis() const;
  void begin_lane(std::string_view name, double height);
  void add_bar(const Span& span, double y, double height);
  void end_row();

  double milliseconds_;
  double y_;
  bool in_row_ = false;
  std::string body_;
};

}  // namespace annulus::html
