#include "training/weights/tensor_folder.hpp"
#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"
#include "training/io/safetensors/writer.hpp"

namespace annulus::weights {
namespace {

using annulus::test::TemporaryFolder;

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
    EXPECT_THAT(text, mentions(folder.path().string()));
    EXPECT_EQ(text.find('\n'), text.npos) << text;
    return text;
  }
  TemporaryFolder folder;
};

TEST(TensorFolder, TakesTheFilesOfTheIndex) {
  const Sharded sharded(R"({"a":"one.safetensors","b":"two.safetensors"})");
  const TensorFolder tensors(sharded.folder.path());
  EXPECT_EQ(tensors.files().size(), 2u);
  EXPECT_EQ(tensors.all().size(), 2u);
  const TensorFolder::Location b = tensors.find("b");
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
  EXPECT_THAT(error_text([&] { TensorFolder{folder.path()}; }), mentions("model.safetensors'"));
}

TEST(TensorFolder, RefusesIndicesThatLeadOutOfTheFolder) {
  for (const char* name :
       {"../one.safetensors", "/etc/passwd", "sub/one.safetensors", "..", ".", "", "a\\\\b", "a\\u0000"})
    EXPECT_THAT(Sharded(std::string(R"({"a":")") + name + "\"}").refusal(), mentions("tensor \"a\"")) << name;
}

TEST(TensorFolder, RefusesIndicesThatAreNotWhatTheFilesSay) {
  for (const auto& [index, named] :
       {std::pair{R"({"a":"two.safetensors","b":"two.safetensors"})", "tensor \"a\""},
        {R"({"a":"one.safetensors","b":"one.safetensors"})", "tensor \"b\""},
        {R"({"a":"one.safetensors","b":"three.safetensors"})", "three.safetensors"},
        {R"({"a":"one.safetensors","a":"two.safetensors"})", "'a' twice"},
        {R"({"a":1})", "tensor \"a\""},
        {"[]", "weight_map"},
        {"{}", "weight_map"}})
    EXPECT_THAT(Sharded(index).refusal(), mentions(named)) << index;
  const Sharded twice(R"({"a":"one.safetensors","b":"two.safetensors"})");
  write_tensor(twice.folder.file("two.safetensors"), "a", 1);
  EXPECT_THAT(twice.refusal(), mentions("tensor \"a\"", "\"one.safetensors\"", "\"two.safetensors\""));
  const Sharded more(R"({"a":"one.safetensors"})");
  write_tensor(more.folder.file("one.safetensors"), "c", 1);
  EXPECT_THAT(more.refusal(), mentions("tensor \"a\""));
  const TemporaryFolder device;
  std::filesystem::create_symlink("/dev/zero", device.file("model.safetensors.index.json"));
  const TemporaryFolder empty;
  for (const auto& folder : {device.path(), empty.path()})
    EXPECT_THAT(error_text([&] { TensorFolder{folder}; }), mentions(folder.string()));
}

}  // namespace
}  // namespace annulus::weights
