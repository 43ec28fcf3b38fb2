#include <sys/stat.h>

#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"
#include "training/io/safetensors/safetensors.hpp"
#include "training/io/safetensors_bytes.hpp"

namespace annulus::io {
namespace {

using test::safetensors_bytes;

/// The error that a file of these bytes ends in: one line that names the file.
std::string refusal(std::string_view bytes) {
  const test::TemporaryFolder folder;
  const std::string name = folder.write("model.safetensors", bytes);
  const std::string text = error_text([&] { SafetensorsFile{name}; });
  EXPECT_THAT(text, mentions(name));
  EXPECT_EQ(text.find('\n'), text.npos) << text;
  return text;
}

/// Headers that are refused before eight bytes of data, and what of them is named.
void expect_refusals(const std::vector<std::pair<std::string, const char*>>& headers) {
  for (const auto& [header, named] : headers)
    EXPECT_THAT(refusal(safetensors_bytes(header, "01234567")), mentions(named)) << header.substr(0, 200);
}

TEST(SafetensorsRefused, Lengths) {
  for (const auto& [bytes, named] : {std::pair<std::string, const char*>{"", "0 bytes"},
                                     {"short", "5 bytes"},
                                     {std::string("\0\0\0\0\0\0\0\x80{}", 10), "9223372036854775808 bytes"},
                                     {std::string(8, '\xff') + "{}", "18446744073709551615 bytes"},
                                     {std::string("\x03\0\0\0\0\0\0\0{}", 10), "3 bytes"}})
    EXPECT_THAT(refusal(bytes), mentions(named));
  const test::TemporaryFolder folder;
  const std::string name = folder.write("a", std::string("\x01\xe1\xf5\x05\0\0\0\0", 8));
  std::filesystem::resize_file(name, 8 + 100'000'001);  // a header over the limit
  EXPECT_THAT(error_text([&] { SafetensorsFile{name}; }), mentions(name, "100000000"));
}

TEST(SafetensorsRefused, WhatIsNoObjectOfTensors) {
  expect_refusals({{"", "header"},
                   {"[]", "header"},
                   {" {}", "header"},
                   {"{", "byte"},
                   {"{}x", "byte"},
                   {std::string("{}\0", 3), "byte"},
                   {"{\"\xff\":{}}", "byte"},
                   {R"({"w":1})", "tensor \"w\""},
                   {R"({"w":null})", "tensor \"w\""},
                   {R"({"__metadata__":null,"__metadata__":null})", "twice"},
                   {R"({"__metadata__":{"a":null}})", "\"a\" of __metadata__"},
                   {R"({"w":[{}]})", "tensor \"w\""},
                   {R"({"__metadata__":{"a":1}})", "\"a\" of __metadata__"},
                   {R"({"__metadata__":{"a":{"b":"c"}}})", "\"a\" of __metadata__"},
                   {R"({"__metadata__":"a"})", "__metadata__"},
                   {"{\"w\":" + std::string(100000, '['), "nested"},
                   {"{\"w\":{\"shape\":" + std::string(100000, '['), "nested"}});
}

TEST(SafetensorsRefused, WhatIsSaidTwice) {
  expect_refusals({{R"({"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},
                        "w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
                    "'w' twice"},
                   {R"({"__metadata__":{},"__metadata__":{}})", "__metadata__"},
                   {R"({"__metadata__":{"a":"b","a":"b"}})", "'a' twice"},
                   {R"({"w":{"dtype":"U8","dtype":"U8"}})", "'dtype' twice"},
                   {R"({"w":{"shape":[8],"shape":[8]}})", "'shape' twice"}});
}

TEST(SafetensorsRefused, FieldsThatAreMissingWrongOrUnknown) {
  expect_refusals({{R"({"w":{}})", "dtype"},
                   {R"({"w":{"dtype":"U8"}})", "shape"},
                   {R"({"w":{"dtype":"U8","shape":[8]}})", "data_offsets"},
                   {R"({"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"more":8}})", "\"more\""},
                   {R"({"w":{"dtype":1,"shape":[8],"data_offsets":[0,8]}})", "dtype"},
                   {R"({"w":{"dtype":"F4","shape":[16],"data_offsets":[0,8]}})", "\"F4\""},
                   {R"({"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8,8]}})", "3 data_offsets"}});
  for (const std::string shape : {"8", "[-1]", "[1.5]", "[18446744073709551616]", "[\"8\"]", "null"})
    expect_refusals({{R"({"w":{"dtype":"U8","data_offsets":[0,8],"shape":)" + shape + "}}", "shape"}});
}

TEST(SafetensorsRefused, ShapesAndPlacesThatDisagree) {
  expect_refusals({{R"({"w":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "(3) of F32"},
                   {R"({"w":{"dtype":"U8","shape":[],"data_offsets":[0,8]}})", "8 bytes"},
                   {R"({"w":{"dtype":"U8","shape":[8],"data_offsets":[8,0]}})", "byte 8"},
                   {R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", "shape"},
                   {R"({"w":{"dtype":"U8","shape":[16],"data_offsets":[0,16]}})", "byte 16"},
                   {R"({"w":{"dtype":"U8","shape":[0],"data_offsets":[9,9]}})", "byte 9"},
                   {R"({"a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},
                        "b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                    "byte 4"},
                   {R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},
                        "b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
                    "tensor \"a\""},
                   {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
                        "b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                    "bytes 2 to 4"},
                   {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "6 bytes"},
                   {"{}", "8 bytes"}});
}

TEST(SafetensorsRefused, NamesCannotBreakTheLine) {
  expect_refusals({{R"({"a\nerror: \u001b[31mb":{}})", R"("a\nerror: \u001b[31mb")"}});
  EXPECT_LT(refusal(safetensors_bytes("{\"" + std::string(10000, 'w') + "\":{}}")).size(), 500u);
}

TEST(SafetensorsRefused, WhatIsNoFile) {
  const test::TemporaryFolder folder;
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  for (const std::string& name : {folder.file("no"), folder.path().string(), folder.file("pipe")})
    EXPECT_THAT(error_text([&] { SafetensorsFile{name}; }), mentions(name));
}

}  // namespace
}  // namespace annulus::io
