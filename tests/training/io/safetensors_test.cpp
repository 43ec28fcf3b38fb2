#include <cmath>
#include <cstring>
#include <thread>

#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"
#include "training/io/atomic.hpp"
#include "training/io/safetensors/writer.hpp"
#include "training/io/safetensors_bytes.hpp"

namespace annulus::io {
namespace {

using test::safetensors_bytes;
using testing::ElementsAre;

template <class T>
std::vector<T> read(const SafetensorsFile& file, std::string_view name) {
  std::vector<T> values(file.tensor(name).bytes() / sizeof(T));
  file.read(file.tensor(name), std::span<T>(values));
  return values;
}

template <class T>
std::span<const T> span_of(const std::vector<T>& values) {
  return values;
}

using Safetensors = annulus::test::FolderTest;

TEST_F(Safetensors, AreReadAsTheFormatSays) {
  const std::string data("\0\0\x80\x3f\0\0\0\xc0\x80\x3f\x05", 11);  // 1, −2 as F32; 1 as BF16; 5 as U8
  const SafetensorsFile file(folder_.write("a", safetensors_bytes(R"({"__metadata__":{"format":"pt"},
        "b":{"data_offsets":[8,10],"shape":[],"dtype":"BF16"},
        "a.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},
        "empty":{"dtype":"F64","shape":[3,0],"data_offsets":[8,8]},
        "mask":{"dtype":"BOOL","shape":[1],"data_offsets":[10,11]}}   )",
                                                                  data)));
  EXPECT_THAT(file.metadata(), ElementsAre(testing::Pair("format", "pt")));
  ASSERT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.tensors()[0], (SafetensorsTensor{"a.weight", "F32", DType::f32, {1, 2}, 0, 8}));
  EXPECT_EQ(file.tensors()[1], (SafetensorsTensor{"empty", "F64", DType::f64, {3, 0}, 8, 8}));
  EXPECT_EQ(file.tensors()[2], (SafetensorsTensor{"b", "BF16", DType::bf16, {}, 8, 10}));
  EXPECT_EQ(file.tensors()[3], (SafetensorsTensor{"mask", "BOOL", std::nullopt, {1}, 10, 11}));
  EXPECT_THAT(read<float>(file, "a.weight"), ElementsAre(1.0f, -2.0f));
  EXPECT_EQ(static_cast<float>(read<bfloat16>(file, "b").front()), 1.0f);
  std::vector<float> second(1);
  file.read(file.tensor("a.weight"), 1, std::span(second));
  EXPECT_EQ(second[0], -2.0f);
  std::byte mask{};
  file.read_bytes(file.tensor("mask"), 0, 1, std::span(&mask, 1));
  EXPECT_EQ(std::to_integer<int>(mask), 5);
  EXPECT_EQ(file.find("no"), nullptr);
}

/// As the library of the format reads it.
TEST_F(Safetensors, MetadataMayBeNull) {
  const SafetensorsFile file(folder_.write(
      "a", safetensors_bytes(R"({"__metadata__":null,"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                             "ab")));
  EXPECT_TRUE(file.metadata().empty());
  EXPECT_THAT(read<std::uint8_t>(file, "w"), ElementsAre('a', 'b'));
}

TEST_F(Safetensors, OfAnotherTypeOrLengthAreRefused) {
  const SafetensorsFile file(folder_.write(
      "a", safetensors_bytes(R"({"w":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}})", "abcd")));
  std::vector<float> floats(1);
  std::vector<float16> halves(3);
  EXPECT_THAT(error_text([&] { file.read(file.tensor("w"), std::span(floats)); }),
              mentions(folder_.file("a"), "\"w\"", "F32"));
  EXPECT_THAT(error_text([&] { file.read(file.tensor("w"), std::span(halves)); }), mentions("4 bytes"));
  for (const std::uint64_t first : {std::uint64_t{1}, std::uint64_t{3}, ~std::uint64_t{0}})
    EXPECT_THAT(error_text([&] { file.read(file.tensor("w"), first, std::span(halves).first(2)); }),
                mentions("\"w\"", fmt::format("element {}", first)));
  EXPECT_THAT(error_text([&] { file.tensor("v"); }), mentions(folder_.file("a"), "\"v\""));
}

TEST_F(Safetensors, ShrinkingUnderTheReaderIsAnError) {
  const std::string bytes =
      safetensors_bytes(R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "abcd");
  const SafetensorsFile file(folder_.write("a", bytes));
  folder_.write("a", bytes.substr(0, bytes.size() - 2));
  EXPECT_THAT(error_text([&] { read<std::uint8_t>(file, "w"); }), mentions(folder_.file("a")));
}

using SafetensorsWriting = annulus::test::FolderTest;

TEST_F(SafetensorsWriting, WritesTheBytesOfTheFormat) {
  const std::vector<std::uint8_t> narrow{7, 8, 9};
  const std::vector<bfloat16> wide{bfloat16(1.0f), bfloat16(-2.0f)};
  write_safetensors(folder_.file("a"), {{"narrow", DType::u8, {3}}, {"wide/é\"", DType::bf16, {2, 1}}},
                    {{"format", "pt"}, {"a", "\n"}}, [&](SafetensorsWriter& file) {
                      file.write("narrow", 0, span_of(narrow));
                      file.write("wide/é\"", 0, span_of(wide));
                    });
  const std::string header = R"({"__metadata__":{"a":"\n","format":"pt"},)"
                             R"("wide/é\"":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]},)"
                             R"("narrow":{"dtype":"U8","shape":[3],"data_offsets":[4,7]}})";
  const std::string padding((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(read_text(folder_.file("a")),
            safetensors_bytes(header + padding, std::string("\x80\x3f\0\xc0\x07\x08\x09", 7)));
}

TEST_F(SafetensorsWriting, AnyOrderGivesTheSameFile) {
  std::vector<float> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const std::vector<SafetensorsSpec> specs{
      {"a", DType::f32, {10, 100}}, {"none", DType::f32, {0}}, {"b", DType::f32, {1000}}};
  write_safetensors(folder_.file("in order"), specs, {}, [&](SafetensorsWriter& file) {
    file.write("a", 0, span_of(values));
    file.write("b", 0, span_of(values));
  });
  write_safetensors(folder_.file("mixed"), specs, {}, [&](SafetensorsWriter& file) {
    std::vector<std::jthread> threads;
    for (const char* name : {"b", "a"})
      for (const std::size_t begin : {300u, 0u, 700u})
        threads.emplace_back([&, name, begin] {
          const std::size_t count = begin == 0 ? 300 : begin == 300 ? 400 : 300;
          file.write(name, begin, span_of(values).subspan(begin, count));
        });
  });
  EXPECT_EQ(read_text(folder_.file("in order")), read_text(folder_.file("mixed")));
}

TEST_F(SafetensorsWriting, KeepsEveryBit) {
  std::vector<float> values{std::numeric_limits<float>::quiet_NaN(), -0.0f, 1e-45f, INFINITY};
  std::vector<std::int64_t> numbers{std::numeric_limits<std::int64_t>::min(), -1};
  write_safetensors(folder_.file("a"), {{"f", DType::f32, {4}}, {"i", DType::i64, {2}}}, {},
                    [&](SafetensorsWriter& file) {
                      file.write("i", 0, span_of(numbers));
                      file.write("f", 0, span_of(values));
                    });
  const SafetensorsFile file(folder_.file("a"));
  EXPECT_EQ(std::memcmp(read<float>(file, "f").data(), values.data(), 16), 0);
  EXPECT_EQ(read<std::int64_t>(file, "i"), numbers);
}

TEST_F(SafetensorsWriting, RefusesWhatDoesNotFit) {
  for (const auto& [specs, named] : std::vector<std::pair<std::vector<SafetensorsSpec>, const char*>>{
           {{{"w", DType::f32, {1}}, {"w", DType::u8, {1}}}, "\"w\""},
           {{{"__metadata__", DType::f32, {1}}}, "__metadata__"},
           {{{"\xff", DType::f32, {1}}}, "UTF-8"},
           {{{"w", DType::f32, {1ull << 40, 1ull << 40}}}, "\"w\""}})
    EXPECT_THAT(error_text([&] { SafetensorsWriter(folder_.file("a"), specs); }),
                mentions(folder_.file("a"), named));
  EXPECT_THAT(error_text([&] { SafetensorsWriter(folder_.file("no/a"), {}); }),
              mentions(folder_.file("no/a")));

  SafetensorsWriter file(folder_.file("a"), {{"w", DType::f32, {4}}, {"v", DType::f32, {1}}});
  const std::vector<float> two{1, 2};
  file.write("w", 1, span_of(two));
  for (const std::uint64_t first : {2u, 0u, 3u})
    EXPECT_THAT(error_text([&] { file.write("w", first, span_of(two)); }),
                mentions("\"w\"", fmt::format("element {}", first)));
  EXPECT_THAT(error_text([&] { file.write("u", 0, span_of(two)); }), mentions("\"u\""));
  EXPECT_THAT(error_text([&] { file.write("w", 0, std::span<const std::int32_t>{}); }), mentions("F32"));
  EXPECT_THAT(error_text([&] { file.finish(); }), mentions("\"w\"", "byte 0 of its 16"));
  file.write("w", 0, span_of(two).first(1));
  EXPECT_THAT(error_text([&] { file.finish(); }), mentions("\"w\"", "byte 12 of its 16"));
  file.write("w", 3, span_of(two).first(1));
  EXPECT_THAT(error_text([&] { file.finish(); }), mentions("\"v\"", "byte 0 of its 4"));
  file.write("v", 0, span_of(two).first(1));
  file.finish();
}

}  // namespace
}  // namespace annulus::io
