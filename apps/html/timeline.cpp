#include "html/timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "html/axis.hpp"
#include "html/element.hpp"

namespace annulus::html {

namespace {

// Pixels.
constexpr double label_width = 170, plot_width = 1180, right_margin = 24;
constexpr double axis_height = 34, group_height = 22, tall_lane_height = 18;
constexpr double stack_height = 10, min_stack_height = 1.5, max_lane_height = 72;
constexpr double lane_gap = 2, row_gap = 8;
constexpr double letter_width = 5.6;  // at the size of labels in bars

/// The first row that is free for each of the spans, which are in the order of their start, and the number of
/// rows.
std::pair<std::vector<int>, int> rows_without_overlap(const std::vector<Span>& spans) {
  std::vector<int> rows;
  std::vector<double> free_from;
  for (const Span& span : spans) {
    const auto row = std::ranges::find_if(free_from, [&span](double end) { return end <= span.start; });
    rows.push_back(static_cast<int>(row - free_from.begin()));
    if (row == free_from.end()) {
      free_from.push_back(span.end);
    } else {
      *row = span.end;
    }
  }
  return {std::move(rows), static_cast<int>(free_from.size())};
}

template <class... Args>
void append(std::string& to, fmt::format_string<Args...> text, Args&&... args) {
  to += fmt::format(text, std::forward<Args>(args)...);
}

}  // namespace

TimelineDrawing::TimelineDrawing(double seconds)
    : milliseconds_(std::max(seconds * 1e3, 1e-9)), y_(axis_height) {}

void TimelineDrawing::add_group(std::string_view name) {
  end_row();
  body_ += text_element("group", 4, y_ + 15, name);
  append(body_, "<line class=\"group\" x1=\"0\" x2=\"{0:.0f}\" y1=\"{1:.1f}\" y2=\"{1:.1f}\"/>\n",
         label_width + plot_width, y_ + 1);
  y_ += group_height;
}

void TimelineDrawing::add_row(std::string_view name) {
  end_row();
  in_row_ = true;
  body_ += text_element("row-name", 4, y_ + 13, name);
}

void TimelineDrawing::add_lane(std::string_view name, const std::vector<Span>& spans) {
  begin_lane(name, tall_lane_height);
  for (const Span& span : spans) add_bar(span, y_, tall_lane_height);
  y_ += tall_lane_height + lane_gap;
}

void TimelineDrawing::add_stacked_lane(std::string_view name, std::vector<Span> spans) {
  std::ranges::stable_sort(spans, {}, &Span::start);
  const auto [rows, count] = rows_without_overlap(spans);
  const double lane_height = std::clamp(count * stack_height, stack_height, max_lane_height);
  const double height = std::max(lane_height / std::max(count, 1), min_stack_height);
  begin_lane(name, height * count);
  for (std::size_t i = 0; i < spans.size(); ++i) add_bar(spans[i], y_ + rows[i] * height, height);
  y_ += height * count + lane_gap;
}

std::string TimelineDrawing::to_svg(std::string_view title) const {
  const double width = label_width + plot_width + right_margin;
  return begin_svg(width, y_ + (in_row_ ? row_gap : 0) + 6, title) + axis() + body_ + "</svg>\n";
}

double TimelineDrawing::x(double seconds) const {
  return label_width + seconds * 1e3 / milliseconds_ * plot_width;
}

std::string TimelineDrawing::axis() const {
  std::string text;
  const double step = tick_distance(milliseconds_);
  const int digits = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
  for (int i = 0; i * step <= milliseconds_ * (1 + 1e-9); ++i) {
    append(text,
           "<line class=\"grid\" x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"{1:.0f}\" y2=\"{2:.1f}\"/>"
           "<text class=\"tick\" x=\"{0:.2f}\" y=\"{3:.0f}\">{4:.{5}f}</text>\n",
           x(i * step * 1e-3), axis_height - 8, y_, axis_height - 13, i * step, digits);
  }
  return text + text_element("label", label_width - 16, axis_height - 13, "ms");
}

void TimelineDrawing::begin_lane(std::string_view name, double height) {
  body_ += text_element("label", label_width - 8, y_ + height / 2 + 3.5, name);
  append(body_, "<rect class=\"lane\" x=\"{:.0f}\" y=\"{:.1f}\" width=\"{:.0f}\" height=\"{:.1f}\"/>\n",
         label_width, y_, plot_width, height);
}

void TimelineDrawing::add_bar(const Span& span, double y, double height) {
  const double left = x(span.start), width = std::max(x(span.end) - left, 0.4);
  append(body_,
         "<g><title>{}; {:.4g} to {:.4g} ms ({:.4g} ms)</title>"
         "<rect class=\"bar {}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\"/>",
         escaped(span.title), span.start * 1e3, span.end * 1e3, (span.end - span.start) * 1e3,
         class_of(span.colour), left, y, width, height);
  const bool is_tall = height >= tall_lane_height;
  const double letters = static_cast<double>(span.label.size()) * letter_width;
  if (!span.label.empty() && height >= stack_height && letters + 4 <= width) {
    append(body_, "<text class=\"in{} {}\" x=\"{:.2f}\" y=\"{:.2f}\">{}</text>", is_tall ? "" : " small",
           class_of(span.colour), left + width / 2, y + height / 2 + (is_tall ? 3.5 : 2.8),
           escaped(span.label));
  }
  append(body_, "</g>\n");
}

void TimelineDrawing::end_row() {
  if (in_row_) y_ += row_gap;
  in_row_ = false;
}

}  // namespace annulus::html
