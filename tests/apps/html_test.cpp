#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include <annulus/base/error.hpp>

#include "html/axis.hpp"
#include "html/charts.hpp"
#include "html/element.hpp"
#include "html/heat_map.hpp"
#include "html/page.hpp"
#include "html/table.hpp"
#include "html/timeline.hpp"
#include "support/error_text.hpp"

namespace annulus::html {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

int count(const std::string& text, const std::string& part) {
  int times = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

TEST(Html, EscapesWhatIsCalledText) {
  EXPECT_EQ(escaped("a < b & \"c\" > d"), "a &lt; b &amp; &quot;c&quot; &gt; d");
  EXPECT_EQ(element("p", "1 < 2"), "<p>1 &lt; 2</p>\n");
  EXPECT_THAT(legend({{Colour::teal, "K & V"}}, "a < b"),
              mentions("class=\"teal\"", "K &amp; V", "a &lt; b"));
}

TEST(Html, PageHasBothColourSchemesAndNeedsNothingElse) {
  const std::string page =
      to_text({.title = "a<b", .heading = "h", .subtitle = "s", .body = "<p>body</p>\n", .program = "f & g"});
  EXPECT_THAT(page, AllOf(HasSubstr("<title>a&lt;b</title>"), HasSubstr("<p>body</p>"),
                          HasSubstr("f &amp; g"), HasSubstr("prefers-color-scheme: dark"),
                          Not(HasSubstr("<script")), Not(HasSubstr("<link"))));
}

TEST(Html, TableScrollsAndAligns) {
  Table table({{"n"}, {"name", Table::Align::text}, {"reason", Table::Align::prose}});
  table.add({"1", "a&b", "long"});
  const std::string text = table.to_html();
  EXPECT_TRUE(text.starts_with("<div class=\"scroll\">"));
  EXPECT_THAT(text, mentions("<td>1</td>", "<td class=\"text\">a&amp;b</td>", "<td class=\"prose\">long</td>",
                             "<th class=\"text\">reason</th>"));
  EXPECT_THROW(table.add({"1", "2"}), Error);
}

TEST(Html, TicksAreRoundNumbers) {
  EXPECT_EQ(tick_distance(100), 10);
  EXPECT_EQ(tick_distance(25), 5);
  EXPECT_THAT(linear_ticks(100), ElementsAre(0, 20, 40, 60, 80, 100));
  EXPECT_THAT(logarithmic_ticks(1, 100), ElementsAre(1, 2, 5, 10, 20, 50, 100));
  EXPECT_THAT(logarithmic_ticks(3, 6), ElementsAre(3, 4, 5, 6));  // 5 alone would be too few
  EXPECT_THAT(logarithmic_ticks(0.115, 0.155), ElementsAre(testing::DoubleEq(0.12), testing::DoubleEq(0.13),
                                                           testing::DoubleEq(0.14), testing::DoubleEq(0.15)));
  // 1 more than 2^53 is no other double.
  EXPECT_THAT(ticks_between(0x1p53, 0x1p53 + 4, 2), ElementsAre(0x1p53, 0x1p53 + 2, 0x1p53 + 4));
  EXPECT_LT(ticks_between(0x1p53, 0x1p53 + 4, 1).size(), 10U);
}

TEST(Html, LineChartDrawsEveryPointOfEveryLine) {
  LineChart chart{.title = "time", .x_unit = "ranks", .y_unit = "ms", .logarithmic = true};
  chart.lines.push_back(
      {.name = "a & b", .colour = Colour::blue, .dashed = false, .points = {{1, 8}, {2, 4}}});
  chart.lines.push_back({.name = "c", .colour = Colour::red, .dashed = true, .points = {{1, 9}, {4, 3}}});
  const std::string svg = to_svg(chart);
  EXPECT_EQ(count(svg, "<polyline"), 2);
  EXPECT_EQ(count(svg, "<circle"), 4);
  EXPECT_EQ(count(svg, "hollow"), 2);
  EXPECT_THAT(svg, mentions("time (ms)", "a &amp; b, 2 ranks: 4 ms", ">4</text>"));
}

TEST(Html, LineChartLeavesNumbersOutThatWouldOverlap) {
  LineChart chart{.title = "loss", .x_unit = "tokens", .y_unit = ""};
  ChartLine line{.name = "a", .points = {}};
  for (double x = 1; x <= 1 << 20; x *= 2) line.points.emplace_back(x, 1);
  chart.lines = {line};
  const std::string svg = to_svg(chart);
  EXPECT_EQ(count(svg, "<circle"), 21);
  EXPECT_THAT(svg, mentions(">1048576</text>", ">1</text>"));
  EXPECT_LT(count(svg, "class=\"tick\""), 15);
  EXPECT_THAT(svg, Not(HasSubstr(">524288</text>")));
}

TEST(Html, SeriesChartKeepsExtremesAndMarks) {
  SeriesChart chart{.title = "loss", .x_unit = "steps", .y_unit = "nats", .series = {{.name = "a & b"}}};
  for (int x = 0; x < 100000; ++x)
    chart.series[0].points.emplace_back(x, x == 50000 ? 9.0 : x == 7 ? NAN : 1.0);
  chart.marks = {{500, "checkpoint"}, {2e6, "later"}};
  const std::string svg = to_svg(chart);
  EXPECT_LT(svg.size(), 60000u);
  EXPECT_EQ(count(svg, "<polyline"), 1);
  EXPECT_EQ(count(svg, "nan"), 0);
  EXPECT_THAT(svg, mentions("loss (nats)", "a &amp; b", "checkpoint", ">50k</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("later")));
  // The single 9 is drawn: the axis goes from 0 to 9 and some space, from pixel 260 up to 34.
  EXPECT_THAT(svg, HasSubstr(fmt::format(",{:.1f} ", Axis{0, 9 + 0.54, 260, 34}(9.0))));
  EXPECT_EQ(count(to_svg(SeriesChart{.title = "nothing yet"}), "<polyline"), 0);
}

TEST(Html, HeatMapHasTextInEveryCell) {
  HeatMap map{.title = "needle",
              .unit = "%",
              .row_name = "depth",
              .column_name = "tokens",
              .rows = {"0 %", "50 % & on"},
              .columns = {"1024", "2048", "4096"},
              .values = {100, 50, 0, 150, -1, NAN},
              .most = 100,
              .digits = 1};
  const std::string svg = to_svg(map);
  EXPECT_EQ(count(svg, "<rect class=\"cell\""), 6);
  EXPECT_THAT(svg, mentions("needle (%)", "depth 50 % &amp; on, tokens 1024: 150.0 %", ">50.0</text>",
                            "depth 50 % &amp; on, tokens 4096: not measured"));
  EXPECT_EQ(count(svg, "nan"), 0);
  // From no colour to the strongest, which values beyond the ends of the scale have, too.
  EXPECT_EQ(count(svg, "fill-opacity=\"0.000\""), 3);
  EXPECT_EQ(count(svg, "fill-opacity=\"0.300\""), 1);
  EXPECT_EQ(count(svg, "fill-opacity=\"0.600\""), 2);
  map.values.pop_back();
  EXPECT_THAT(error_text([&] { to_svg(map); }), mentions("2 rows", "3 columns", "5 values"));
}

TEST(Html, PicturesHaveColoursAlone) {
  HeatMap map{.title = "weights",
              .row_name = "queries",
              .column_name = "keys",
              .rows = {"0", ""},
              .columns = {"0", ""},
              .values = {1, 0, 0.5, NAN},
              .picture = true};
  const std::string svg = to_svg(map);
  EXPECT_EQ(count(svg, "<path class=\"shade"), 2);
  EXPECT_EQ(count(svg, "h9v9h-9z"), 2) << "those without colour are not drawn";
  EXPECT_THAT(svg, mentions("fill-opacity=\"1.00\"", "fill-opacity=\"0.50\"", "weights", "queries", "keys"));
  EXPECT_EQ(count(svg, "class=\"value\""), 0);
  EXPECT_EQ(count(svg, ">0</text>"), 2);
}

TEST(Html, TimelineStacksWhatOverlaps) {
  const auto height = [](const std::vector<Span>& spans) {
    TimelineDrawing timeline(1);
    timeline.add_row("rank 0");
    timeline.add_stacked_lane("sent", spans);
    const std::string svg = timeline.to_svg("t");
    EXPECT_EQ(count(svg, "class=\"bar "), static_cast<int>(spans.size()));
    const std::string mark = " height=\"";
    return std::stod(svg.substr(svg.find(mark) + mark.size()));
  };
  const Span first{.start = 0, .end = 0.5, .colour = Colour::teal, .label = "k 0", .title = "K"};
  const Span later{.start = 0.5, .end = 1, .colour = Colour::teal, .label = "", .title = "V"};
  const Span beside{.start = 0.25, .end = 0.75, .colour = Colour::red, .label = "", .title = "dQ"};
  EXPECT_EQ(height({first, later}), height({first}));
  EXPECT_EQ(height({first, later, beside}), height({first}) + 10);
}

TEST(Html, TimelineGivesTimesInMilliseconds) {
  TimelineDrawing timeline(0.002);
  timeline.add_group("node 0");
  timeline.add_row("rank 0");
  timeline.add_lane(
      "compute", {{.start = 0.001, .end = 0.002, .colour = Colour::blue, .label = "q0", .title = "q < k"}});
  EXPECT_THAT(timeline.to_svg("t"), mentions("q &lt; k; 1 to 2 ms (1 ms)", ">q0</text>", "node 0", "rank 0"));
}

}  // namespace
}  // namespace annulus::html
