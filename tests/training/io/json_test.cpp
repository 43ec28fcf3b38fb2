#include "training/io/json.hpp"
#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::io {
namespace {

std::string said_of(std::string_view text) {
  return error_text([&] { parse_json(text, "a.json"); });
}

std::string nested(int depth) {
  return std::string(static_cast<std::size_t>(depth), '[') +
         std::string(static_cast<std::size_t>(depth), ']');
}

TEST(Json, ErrorsNameFileAndByte) {
  EXPECT_EQ(parse_json("{\"a\": [1, 2]}", "a.json").at("a").at(1), 2);
  for (const auto& [text, named] : {std::pair<std::string_view, const char*>{"{\"a\": nonsense}", "byte 8"},
                                    {"", "byte"},
                                    {std::string_view("[1]\0]", 5), "byte 4"},
                                    {"{\"a\": \"\xe9t\"}", "byte 8"},
                                    {"[1e999]", "number"}})
    EXPECT_THAT(said_of(text), mentions("'a.json'", named)) << text;
  const test::TemporaryFolder folder;
  const std::string file = folder.write("b.json", "{");
  EXPECT_THAT(error_text([&] { read_json(file); }), mentions("'" + file + "'"));
}

TEST(Json, DepthHasALimit) {
  EXPECT_EQ(said_of(nested(deepest_nesting)), "no error");
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  for (const std::string& deep : {nested(deepest_nesting + 2), std::string(60'000'000, '['), objects})
    EXPECT_THAT(said_of(deep), mentions("'a.json'", "100 deep"));  // at once
}

TEST(Json, ValuesHaveALimit) {
  std::string many = "[";
  for (std::int64_t i = 0; i <= most_json_values; ++i) many += "1,";
  EXPECT_THAT(said_of(many + "1]"), mentions("'a.json'", "values"));
}

TEST(Json, WhatIsNotThereIsNamedWithTheFile) {
  const nlohmann::json value = {{"step", "seven"}};
  const auto take = [&](const char* key) {
    return error_text([&] { take_json_apart("a.json", [&] { return value.at(key).get<int>(); }); });
  };
  EXPECT_THAT(take("loss"), mentions("'a.json'", "'loss'"));
  EXPECT_THAT(take("step"), mentions("'a.json'"));
  EXPECT_EQ(take_json_apart("a.json", [&] { return value.size(); }), 1u);
}

}  // namespace
}  // namespace annulus::io
