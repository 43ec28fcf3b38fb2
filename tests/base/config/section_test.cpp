#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/config/parse.hpp"
#include "base/config/section.hpp"
#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* text =
    "[node]\nrate = 2.5\ncount = 3\nquick = true\nname = 'a'\nnames = ['b', 'c']\nempty = {}\n";

class SectionTest : public testing::Test {
 protected:
  const toml::node& at(const char* key) const { return node_.need(key); }

  const toml::table table_ = parse(text, "nodes.toml");
  const Section file_{table_, "", "nodes.toml"};
  const Section node_{*table_["node"].as_table(), "node", "nodes.toml"};
};

TEST_F(SectionTest, ReadsEveryType) {
  EXPECT_EQ(node_.number(at("rate"), "rate", 0, false), 2.5);
  EXPECT_EQ(node_.number(at("count"), "count", 3, true), 3.0);
  EXPECT_EQ(node_.integer(at("count"), "count", 1, 3), 3);
  EXPECT_TRUE(node_.flag(at("quick"), "quick"));
  EXPECT_EQ(node_.text(at("name"), "name"), "a");
  EXPECT_THAT(node_.texts(at("names"), "names"), ElementsAre("b", "c"));
  EXPECT_EQ(node_.find("none"), nullptr);
  EXPECT_NO_THROW(node_.allow({"rate", "count", "quick", "name", "names", "empty"}));
}

TEST_F(SectionTest, ErrorsNameFileLineAndKey) {
  EXPECT_EQ(error_text([&] { node_.number(at("count"), "count", 3, false); }),
            "nodes.toml:3: node.count must be a number above 3");
  EXPECT_EQ(error_text([&] { node_.integer(at("rate"), "rate", 1, 9); }),
            "nodes.toml:2: node.rate must be an integer from 1 to 9");
  EXPECT_EQ(error_text([&] { node_.integer(at("count"), "count", 4, 9); }),
            "nodes.toml:3: node.count must be an integer from 4 to 9");
  EXPECT_EQ(error_text([&] { node_.flag(at("count"), "count"); }),
            "nodes.toml:3: node.count must be true or false");
  EXPECT_EQ(error_text([&] { node_.text(at("count"), "count"); }),
            "nodes.toml:3: node.count must be a text in quotes");
  EXPECT_THAT(error_text([&] { node_.texts(at("name"), "name"); }),
              HasSubstr("nodes.toml:5: node.name must be a list of texts"));
  EXPECT_EQ(error_text([&] { node_.need("size"); }), "nodes.toml:1: [node] lacks size: add it");
  EXPECT_THAT(error_text([&] { node_.in("name", [](const Section&) {}); }),
              HasSubstr("nodes.toml:5: name must be a table"));
  EXPECT_THAT(error_text([&] { node_.allow({"rate"}); }),
              HasSubstr("nodes.toml:3: unknown key node.count; known are rate"));
}

TEST(Parse, ErrorsNameFileAndLine) {
  EXPECT_THAT(error_text([] { parse("a = 1\nb 2\n", "x.toml"); }), HasSubstr("x.toml:2: "));
  EXPECT_THAT(error_text([] { parse("a 1\n", "x.toml", "see the manual"); }),
              testing::AllOf(HasSubstr("x.toml:1: "), testing::EndsWith("; see the manual")));
  const annulus::test::TemporaryFolder folder;
  const std::string file = folder.write("y.toml", "a = 1\nb = [\n");
  EXPECT_THAT(error_text([&] { parse_file(file); }), HasSubstr(file + ":"));
  EXPECT_EQ(parse_file(folder.write("z.toml", "a = 1\n"))["a"].value<int>(), 1);
}

TEST(Parse, DepthHasALimitWhateverStandsInQuotes) {
  const auto said_of = [](const std::string& text) {
    return error_text([&] { parse("x = 1\n" + text + "\n", "x.toml"); });
  };
  std::string commas, keys = "a", tables;
  for (int i = 0; i < 100000; ++i) commas += "\",\".";
  for (int i = 0; i < 60; ++i) keys += ".a", tables += "{a.b = ";
  for (const std::string& text :
       {commas + "a = 1", "y = {" + commas + "a = 1}", "[" + commas + "a]", "y = " + tables,
        keys + " = {" + keys + " = 1}", "y = " + std::string(100000, '['), "'\"'." + commas + "a = 1"})
    EXPECT_THAT(said_of(text), mentions("x.toml:2: ", "nested more than 100 deep"));
  // Dots that are none of keys.
  const std::string dots(1000, '.'), one = "\"\"\"", other = "'''";
  std::string numbers = "y = [";
  for (int i = 0; i < 1000; ++i) numbers += "1.5, {a.b = 2.5}, ";
  for (const std::string& text :
       {numbers + "]", "y = '" + dots + "'", "y = \"" + dots + "\\\"" + dots + "\"", "# " + dots,
        "y = 1 # " + dots, "y = " + one + "\n" + dots + "\"\"\n" + dots + one,
        "y = " + other + "\n" + dots + "''\n" + dots + other, "y = '\"' # " + dots,
        "y = [" + one + "'" + one + ", '" + dots + "']"})
    EXPECT_EQ(said_of(text), "no error") << text.substr(0, 20);
}

}  // namespace
}  // namespace annulus::config
