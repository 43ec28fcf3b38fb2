#include <annulus/base/dtype.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/error_text.hpp"

namespace annulus {
namespace {

template <class T>
void expect_dtype(std::string_view name) {
  const DType type = dtype_of<T>;
  EXPECT_EQ(name_of(type), name);
  EXPECT_EQ(parse_dtype(name), type);
  EXPECT_EQ(size_of(type), sizeof(T));
}

TEST(DType, NamesAndSizes) {
  expect_dtype<float>("f32");
  expect_dtype<bfloat16>("bf16");
  expect_dtype<float16>("f16");
  expect_dtype<double>("f64");
  expect_dtype<std::int32_t>("i32");
  expect_dtype<std::int64_t>("i64");
  expect_dtype<std::uint8_t>("u8");
  expect_dtype<std::uint16_t>("u16");
  expect_dtype<std::uint32_t>("u32");
  expect_dtype<std::uint64_t>("u64");
}

TEST(DType, UnknownNameIsAnErrorThatNamesTheField) {
  for (const char* name : {"", "F32", "float", "bf16 "}) {
    EXPECT_THAT(error_text([&] { parse_dtype(name, "model.dtype"); }),
                mentions("model.dtype", std::string("'") + name + "'", "f32, bf16, f16, f64, i32, i64"));
  }
}

}  // namespace
}  // namespace annulus
