#include <annulus/io/json.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::io {
namespace {

using testing::HasSubstr;

std::string said_of(std::string_view text) {
  return error_text([&] { parse_json(text, "a.json"); });
}

std::string nested(int depth) {
  return std::string(static_cast<std::size_t>(depth), '[') +
         std::string(static_cast<std::size_t>(depth), ']');
}

TEST(Json, ErrorsNameFileAndByte) {
  EXPECT_EQ(parse_json("{\"a\": [1, 2]}", "a.json").at("a").at(1), 2);
  EXPECT_THAT(said_of("{\"a\": nonsense}"), HasSubstr("'a.json' is no JSON from byte 8 on"));
  EXPECT_THAT(said_of(""), HasSubstr("'a.json' is no JSON"));
  EXPECT_THAT(said_of(std::string_view("[1]\0]", 5)), HasSubstr("'a.json' is no JSON from byte 4 on"));
  EXPECT_THAT(said_of("{\"a\": \"\xe9t\"}"), HasSubstr("'a.json' is no JSON from byte 8 on"));
  EXPECT_THAT(said_of("[1e999]"), HasSubstr("'a.json' holds a number that is too large"));
  const test::TemporaryFolder folder;
  const std::string file = folder.write("b.json", "{");
  EXPECT_THAT(error_text([&] { read_json(file); }), HasSubstr("'" + file + "' is no JSON"));
}

TEST(Json, DepthHasALimit) {
  EXPECT_EQ(said_of(nested(deepest_nesting)), "no error");
  EXPECT_THAT(said_of(nested(deepest_nesting + 2)), HasSubstr("'a.json' is nested more than 100 deep"));
  EXPECT_THAT(said_of(std::string(60'000'000, '[')), HasSubstr("nested more than"));  // at once
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  EXPECT_THAT(said_of(objects), HasSubstr("nested more than"));
}

TEST(Json, ValuesHaveALimit) {
  std::string many = "[";
  for (std::int64_t i = 0; i <= most_json_values; ++i) many += "1,";
  EXPECT_THAT(said_of(many + "1]"), HasSubstr("'a.json' has more than"));
}

TEST(Json, WhatIsNotThereIsNamedWithTheFile) {
  const nlohmann::json value = {{"step", "seven"}};
  const auto take = [&](const char* key) {
    return error_text([&] { take_json_apart("a.json", [&] { return value.at(key).get<int>(); }); });
  };
  EXPECT_THAT(take("loss"), mentions("'a.json'", "'loss'"));
  EXPECT_THAT(take("step"), mentions("'a.json'", "must be number"));
  EXPECT_EQ(take_json_apart("a.json", [&] { return value.size(); }), 1u);
}

}  // namespace
}  // namespace annulus::io
