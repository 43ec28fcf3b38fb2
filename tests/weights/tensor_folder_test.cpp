#include <annulus/weights/tensor_folder.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include <annulus/io/safetensors_writer.hpp>

#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::weights {
namespace {

using annulus::test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

void write_tensor(const std::string& path, const std::string& name, std::uint8_t value) {
  io::write_safetensors(path, {{name, DType::u8, {1}}}, {}, [&](io::SafetensorsWriter& file) {
    file.write(name, 0, std::span<const std::uint8_t>(&value, 1));
  });
}

/// A folder of two files with the tensors a and b, and the index `weight_map`.
struct Sharded {
  explicit Sharded(const std::string& weight_map) {
    write_tensor(folder.file("one.safetensors"), "a", 1);
    write_tensor(folder.file("two.safetensors"), "b", 2);
    folder.write("model.safetensors.index.json", R"({"metadata":{},"weight_map":)" + weight_map + "}");
  }
  std::string refusal() const {
    const std::string text = error_text([&] { TensorFolder{folder.path()}; });
    EXPECT_THAT(text, AllOf(HasSubstr(folder.path().string()), Not(HasSubstr("\n"))));
    return text;
  }
  TemporaryFolder folder;
};

TEST(TensorFolder, TakesTheFilesOfTheIndex) {
  const Sharded sharded(R"({"a":"one.safetensors","b":"two.safetensors"})");
  const TensorFolder tensors(sharded.folder.path());
  EXPECT_EQ(tensors.files().size(), 2u);
  EXPECT_EQ(tensors.all().size(), 2u);
  const TensorFolder::Place b = tensors.find("b");
  ASSERT_TRUE(bool(b));
  std::uint8_t value = 0;
  b.file->read(*b.tensor, std::span(&value, 1));
  EXPECT_EQ(value, 2);
  EXPECT_FALSE(bool(tensors.find("c")));
}

TEST(TensorFolder, TakesTheSingleFileFirst) {
  const Sharded sharded("{}");
  write_tensor(sharded.folder.file("model.safetensors"), "c", 3);
  EXPECT_EQ(TensorFolder(sharded.folder.path()).all().size(), 1u);
}

TEST(TensorFolder, FollowsLinksOfTheFolderItself) {  // as the cache of downloads has them
  const TemporaryFolder elsewhere, folder;
  write_tensor(elsewhere.file("blob"), "a", 1);
  std::filesystem::create_symlink(elsewhere.file("blob"), folder.file("model.safetensors"));
  EXPECT_EQ(TensorFolder(folder.path()).all().size(), 1u);
  std::filesystem::remove(elsewhere.file("blob"));
  EXPECT_THAT(error_text([&] { TensorFolder{folder.path()}; }),
              mentions("model.safetensors'", "No such file"));
}

TEST(TensorFolder, RefusesIndicesThatLeadOutOfTheFolder) {
  for (const char* name :
       {"../one.safetensors", "/etc/passwd", "sub/one.safetensors", "..", ".", "", "a\\\\b", "a\\u0000"})
    EXPECT_THAT(Sharded(std::string(R"({"a":")") + name + "\"}").refusal(),
                HasSubstr("outside of the folder"))
        << name;
}

TEST(TensorFolder, RefusesIndicesThatAreNotWhatTheFilesSay) {
  EXPECT_THAT(Sharded(R"({"a":"two.safetensors","b":"two.safetensors"})").refusal(),
              HasSubstr("tensor \"a\" is not in \"two.safetensors\""));
  EXPECT_THAT(Sharded(R"({"a":"one.safetensors","b":"one.safetensors"})").refusal(),
              HasSubstr("tensor \"b\" is not in"));
  EXPECT_THAT(Sharded(R"({"a":"one.safetensors","b":"three.safetensors"})").refusal(),
              mentions("three.safetensors", "No such file"));
  EXPECT_THAT(Sharded(R"({"a":"one.safetensors","a":"two.safetensors"})").refusal(),
              HasSubstr("names 'a' twice"));
  EXPECT_THAT(Sharded(R"({"a":1})").refusal(), HasSubstr("no name of a file"));
  EXPECT_THAT(Sharded("[]").refusal(), HasSubstr("no weight_map"));
  EXPECT_THAT(Sharded("{}").refusal(), HasSubstr("no weight_map"));
  const Sharded twice(R"({"a":"one.safetensors","b":"two.safetensors"})");
  write_tensor(twice.folder.file("two.safetensors"), "a", 1);
  EXPECT_THAT(twice.refusal(),
              HasSubstr("tensor \"a\" lies in \"one.safetensors\" and in \"two.safetensors\""));
  const Sharded more(R"({"a":"one.safetensors"})");
  write_tensor(more.folder.file("one.safetensors"), "c", 1);
  EXPECT_THAT(more.refusal(), HasSubstr("tensor \"a\" is not in"));
  const TemporaryFolder device;
  std::filesystem::create_symlink("/dev/zero", device.file("model.safetensors.index.json"));
  EXPECT_THAT(error_text([&] { TensorFolder{device.path()}; }), HasSubstr("is no regular file"));
  const TemporaryFolder empty;
  EXPECT_THAT(error_text([&] { TensorFolder{empty.path()}; }),
              HasSubstr("holds neither model.safetensors nor"));
}

}  // namespace
}  // namespace annulus::weights
