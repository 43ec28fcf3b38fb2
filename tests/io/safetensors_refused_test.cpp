#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include <annulus/io/safetensors.hpp>

#include "io/safetensors_bytes.hpp"
#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::io {
namespace {

using test::safetensors_bytes;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// The error that a file of these bytes ends in: one line that names the file.
std::string refusal(std::string_view bytes) {
  const test::TemporaryFolder folder;
  const std::string name = folder.write("model.safetensors", bytes);
  const std::string text = error_text([&] { SafetensorsFile{name}; });
  EXPECT_THAT(text, AllOf(HasSubstr(name), Not(HasSubstr("\n"))));
  return text;
}

/// The same of a file with this header and eight bytes of data.
std::string refusal_of(std::string_view header) {
  return refusal(safetensors_bytes(header, "01234567"));
}

TEST(SafetensorsRefused, Lengths) {
  EXPECT_THAT(refusal(""), HasSubstr("has 0 bytes"));
  EXPECT_THAT(refusal("short"), HasSubstr("has 5 bytes and is no safetensors file"));
  EXPECT_THAT(refusal(std::string("\0\0\0\0\0\0\0\x80{}", 10)),
              HasSubstr("would have 9223372036854775808 bytes"));
  EXPECT_THAT(refusal(std::string(8, '\xff') + "{}"), HasSubstr("would have 18446744073709551615 bytes"));
  EXPECT_THAT(refusal(std::string("\x03\0\0\0\0\0\0\0{}", 10)),
              HasSubstr("would have 3 bytes, the file has 10"));
}

TEST(SafetensorsRefused, HeadersOverTheLimit) {
  const test::TemporaryFolder folder;
  const std::string name = folder.write("a", std::string("\x01\xe1\xf5\x05\0\0\0\0", 8));  // 100,000,001
  std::filesystem::resize_file(name, 8 + 100'000'001);
  EXPECT_THAT(error_text([&] { SafetensorsFile{name}; }), HasSubstr("at most 100000000 are read"));
}

TEST(SafetensorsRefused, WhatIsNoObjectOfTensors) {
  EXPECT_THAT(refusal_of(""), HasSubstr("no JSON object"));
  EXPECT_THAT(refusal_of("[]"), HasSubstr("no JSON object"));
  EXPECT_THAT(refusal_of(" {}"), HasSubstr("no JSON object"));
  EXPECT_THAT(refusal_of("{"), HasSubstr("no JSON from byte"));
  EXPECT_THAT(refusal_of("{}x"), HasSubstr("no JSON from byte"));
  EXPECT_THAT(refusal_of(std::string_view("{}\0", 3)), HasSubstr("no JSON from byte"));
  EXPECT_THAT(refusal_of("{\"\xff\":{}}"), HasSubstr("no JSON from byte"));
  EXPECT_THAT(refusal_of(R"({"w":1})"), HasSubstr("tensor \"w\" is a number"));
  EXPECT_THAT(refusal_of(R"({"w":null})"), HasSubstr("tensor \"w\" is null"));
  EXPECT_THAT(refusal_of(R"({"__metadata__":null,"__metadata__":null})"), HasSubstr("twice"));
  EXPECT_THAT(refusal_of(R"({"__metadata__":{"a":null}})"), HasSubstr("\"a\" of __metadata__ is null"));
  EXPECT_THAT(refusal_of(R"({"w":[{}]})"), HasSubstr("tensor \"w\" is an array"));
  EXPECT_THAT(refusal_of(R"({"__metadata__":{"a":1}})"), HasSubstr("\"a\" of __metadata__ is a number"));
  EXPECT_THAT(refusal_of(R"({"__metadata__":{"a":{"b":"c"}}})"), HasSubstr("is an object"));
  EXPECT_THAT(refusal_of(R"({"__metadata__":"a"})"), HasSubstr("is a string"));
  EXPECT_THAT(refusal_of("{\"w\":" + std::string(100000, '[')), HasSubstr("is an array"));
  EXPECT_THAT(refusal_of("{\"w\":{\"shape\":" + std::string(100000, '[')),
              HasSubstr("has an array for its shape"));
}

TEST(SafetensorsRefused, WhatIsSaidTwice) {
  EXPECT_THAT(refusal_of(R"({"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},
                             "w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})"),
              HasSubstr("\"w\" stands in the header twice"));
  EXPECT_THAT(refusal_of(R"({"__metadata__":{},"__metadata__":{}})"), HasSubstr("twice"));
  EXPECT_THAT(refusal_of(R"({"__metadata__":{"a":"b","a":"b"}})"),
              HasSubstr("\"a\" stands in __metadata__ twice"));
  EXPECT_THAT(refusal_of(R"({"w":{"dtype":"U8","dtype":"U8"}})"), HasSubstr("has its dtype twice"));
  EXPECT_THAT(refusal_of(R"({"w":{"shape":[8],"shape":[8]}})"), HasSubstr("has its shape twice"));
}

TEST(SafetensorsRefused, FieldsThatAreMissingWrongOrUnknown) {
  EXPECT_THAT(refusal_of(R"({"w":{}})"), HasSubstr("tensor \"w\" has no dtype"));
  EXPECT_THAT(refusal_of(R"({"w":{"dtype":"U8"}})"), HasSubstr("has no shape"));
  EXPECT_THAT(refusal_of(R"({"w":{"dtype":"U8","shape":[8]}})"), HasSubstr("has no data_offsets"));
  EXPECT_THAT(refusal_of(R"({"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8,8]}})"),
              HasSubstr("has 3 data_offsets"));
  EXPECT_THAT(refusal_of(R"({"w":{"dtype":1}})"), HasSubstr("has a number for its dtype"));
  EXPECT_THAT(refusal_of(R"({"w":{"shape":8}})"), HasSubstr("has a number for its shape"));
  EXPECT_THAT(refusal_of(R"({"w":{"shape":[-1]}})"), HasSubstr("has a negative number for its shape"));
  EXPECT_THAT(refusal_of(R"({"w":{"shape":[1.5]}})"), HasSubstr("no whole number"));
  EXPECT_THAT(refusal_of(R"({"w":{"shape":[18446744073709551616]}})"), HasSubstr("of 64 bits"));
  EXPECT_THAT(refusal_of(R"({"w":{"shape":["8"]}})"), HasSubstr("has a string for its shape"));
  EXPECT_THAT(refusal_of(R"({"w":{"shape":null}})"), HasSubstr("has null for its shape"));
  EXPECT_THAT(refusal_of(R"({"w":{"more":8}})"), HasSubstr("a field \"more\" that the format does not know"));
  EXPECT_THAT(refusal_of(R"({"w":{"dtype":"F4","shape":[16],"data_offsets":[0,8]}})"),
              mentions("\"w\" has the dtype \"F4\"", "convert"));
}

TEST(SafetensorsRefused, ShapesAndPlacesThatDisagree) {
  EXPECT_THAT(refusal_of(R"({"w":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})"),
              HasSubstr("has 8 bytes, but its shape (3) of F32 needs 12"));
  EXPECT_THAT(refusal_of(R"({"w":{"dtype":"U8","shape":[],"data_offsets":[0,8]}})"), HasSubstr("needs 1"));
  EXPECT_THAT(refusal_of(R"({"w":{"dtype":"U8","shape":[8],"data_offsets":[8,0]}})"),
              HasSubstr("ends (byte 0) before it begins (byte 8)"));
  EXPECT_THAT(refusal_of(R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})"),
              HasSubstr("more than 2^64 bytes"));
  EXPECT_THAT(refusal_of(R"({"w":{"dtype":"U8","shape":[16],"data_offsets":[0,16]}})"),
              mentions("\"w\" ends at byte 16", "has 8", "truncated"));
  EXPECT_THAT(refusal_of(R"({"w":{"dtype":"U8","shape":[0],"data_offsets":[9,9]}})"),
              HasSubstr("ends at byte 9"));
  EXPECT_THAT(refusal_of(R"({"a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},
                             "b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})"),
              HasSubstr("\"b\" begins at byte 4 of the data, inside of tensor \"a\", which ends at byte 6"));
  EXPECT_THAT(refusal_of(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},
                             "b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})"),
              HasSubstr("inside of tensor \"a\""));
  EXPECT_THAT(refusal_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
                             "b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})"),
              HasSubstr("bytes 2 to 4 of the data, before tensor \"b\", belong to no tensor"));
  EXPECT_THAT(refusal_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})"),
              HasSubstr("6 bytes behind the last tensor"));
  EXPECT_THAT(refusal_of("{}"), HasSubstr("8 bytes behind the last tensor"));
}

TEST(SafetensorsRefused, NamesCannotBreakTheLine) {
  EXPECT_THAT(refusal_of(R"({"a\nerror: \u001b[31mb":{}})"),
              HasSubstr(R"("a\nerror: \u001b[31mb" has no dtype)"));
  EXPECT_LT(refusal_of("{\"" + std::string(10000, 'w') + "\":{}}").size(), 500u);
}

TEST(SafetensorsRefused, WhatIsNoFile) {
  const test::TemporaryFolder folder;
  EXPECT_THAT(error_text([&] { SafetensorsFile{folder.file("no")}; }), HasSubstr("No such file"));
  EXPECT_THAT(error_text([&] { SafetensorsFile{folder.path()}; }), HasSubstr("is a folder"));
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_text([&] { SafetensorsFile{folder.file("pipe")}; }), HasSubstr("no regular file"));
}

}  // namespace
}  // namespace annulus::io
