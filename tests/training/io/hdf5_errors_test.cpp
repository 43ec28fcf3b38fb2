#include <fcntl.h>
#include <sys/file.h>

#include "support/error_text.hpp"
#include "support/full_disk.hpp"
#include "training/io/atomic.hpp"
#include "training/io/hdf5_files/hdf5_writer.hpp"

namespace annulus::io {
namespace {

/// Writes "x": i32 (2, 3) and "g/y", and gives the file's name.
std::string good_file(const test::TemporaryFolder& folder) {
  write_hdf5_atomically(folder.file("good.h5"), [&](FileWriter& file) {
    const std::vector<std::int32_t> ones(6, 1);
    file.write("x", std::span<const std::int32_t>(ones), {2, 3});
    file.write("g/y", std::span<const std::int32_t>(ones), {6});
    file.set_attribute("text", "t");
    file.set_attribute("n", 1);
    file.set_attribute("real", 0.5);
  });
  return folder.file("good.h5");
}

std::string open_error(const std::string& path) {
  return error_text([&] { File::open(path); });
}

using Hdf5Errors = annulus::test::FolderTest;

TEST_F(Hdf5Errors, MissingEmptyAndForeignFilesAndFolders) {
  for (const std::string& path :
       {folder_.file("none.h5"), folder_.path().string(), folder_.write("empty.h5", ""),
        folder_.write("text.h5", "Call me Ishmael.")})
    EXPECT_THAT(open_error(path), mentions("'" + path + "'"));
}

TEST_F(Hdf5Errors, TruncatedFileOfAnyLength) {
  const std::string bytes = read_text(good_file(folder_));
  for (std::size_t length :
       {std::size_t{8}, std::size_t{40}, std::size_t{96}, bytes.size() / 2, bytes.size() - 1}) {
    const std::string path = folder_.write("cut.h5", bytes.substr(0, length));
    EXPECT_THAT(open_error(path), mentions(path)) << length;
  }
}

TEST_F(Hdf5Errors, FileThatAnotherProgramIsWriting) {
  const std::string path = good_file(folder_);
  const int writer = ::open(path.c_str(), O_RDWR);
  ASSERT_EQ(::flock(writer, LOCK_EX), 0);  // what HDF5 does to a file that it writes
  EXPECT_THAT(open_error(path), mentions(path));
  ::close(writer);
  EXPECT_EQ(open_error(path), "no error");
}

TEST_F(Hdf5Errors, WhatIsMissingOrOfAnotherTypeIsNamed) {
  const File file = File::open(good_file(folder_));
  const Dataset x = file.dataset("x");
  std::vector<std::int32_t> out(4);
  for (const auto& [call, named] : std::vector<std::pair<std::function<void()>, const char*>>{
           {[&] { file.dataset("y"); }, "'/y'"},
           {[&] { file.dataset("g"); }, "'/g'"},
           {[&] { file.group("h"); }, "'/h'"},
           {[&] { file.group("x"); }, "'/x'"},
           {[&] { file.read<float>("x"); }, "'/x' holds i32"},
           {[&] { x.require_rank(1); }, "2 dimensions"},
           {[&] { x.read(std::span(out)); }, "4 elements"},
           {[&] {
              x.read({{0}, {4}}, std::span(out));
            },
            "1 dimensions"},
           {[&] {
              x.read({{1, 0}, {2, 2}}, std::span(out));
            },
            "dimension 0"},
           {[&] { file.integer_attribute("y"); }, "'y'"},
           {[&] { file.string_attribute("n"); }, "'n' of '/'"},
           {[&] { file.integer_attribute("text"); }, "'text' of '/'"},
           {[&] { file.integer_attribute("real"); }, "'real' of '/'"}})
    EXPECT_THAT(error_text(call), mentions(file.file(), named));
}

TEST_F(Hdf5Errors, MakingAThingTwice) {
  FileWriter file = FileWriter::create(folder_.file("a.h5"));
  file.create_dataset("g/x", DType::f32, {1});
  for (const std::string name : {"g/x", "g", "g/x/y"})
    EXPECT_THAT(error_text([&] { file.create_dataset(name, DType::f32, {1}); }), mentions("'/" + name + "'"));
}

TEST_F(Hdf5Errors, UnwritableFolders) {
  const auto write = [](const std::string& path) {
    return error_text([&] { write_hdf5_atomically(path, [](FileWriter&) {}); });
  };
  EXPECT_THAT(write(folder_.file("no/a.h5")), mentions(folder_.file("no/a.h5")));
  folder_.write("file", "x");
  EXPECT_THAT(write(folder_.file("file/a.h5")), mentions(folder_.file("file/a.h5")));
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  std::filesystem::permissions(folder_.path(),
                               std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  EXPECT_THAT(write(folder_.file("a.h5")), mentions(folder_.file("a.h5"), "Permission denied"));
  std::filesystem::permissions(folder_.path(), std::filesystem::perms::owner_all);
}

TEST_F(Hdf5Errors, ReadOnlyFileSystem) {
  test::SmallFileSystem disk(1 << 20);
  if (!disk.mounted() || !disk.make_read_only()) GTEST_SKIP() << "this process may not mount";
  EXPECT_THAT(error_text([&] { write_hdf5_atomically(disk.path() / "a.h5", [](FileWriter&) {}); }),
              mentions("a.h5", "Read-only file system"));
}

/// What is written when the disk is too small: large data, much small data, or what is left for closing.
struct Load {
  const char* name;
  std::size_t elements;
  int datasets;
};

class Hdf5FullDisk : public testing::TestWithParam<Load> {
 protected:
  static constexpr std::int64_t room = 256 << 10;

  /// Fails to replace a good file three times; the good file stays, and nothing else.
  static void fill(const std::filesystem::path& folder, const char* expected) {
    const std::filesystem::path path = folder / "a.h5";
    const Load& load = GetParam();
    for (int attempt = 0; attempt < 3; ++attempt) {
      EXPECT_THAT(error_text([&] {
                    write_hdf5_atomically(path, [&](FileWriter& file) {
                      const std::vector<float> values(load.elements, 1.5f);
                      for (int i = 0; i < load.datasets; ++i) {
                        file.write("g/x" + std::to_string(i), std::span<const float>(values),
                                   {values.size()});
                      }
                    });
                  }),
                  mentions(path.string(), expected));
      EXPECT_EQ(File::open(path).integer_attribute("n"), 1);
      std::size_t files = 0;
      for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++files;
      EXPECT_EQ(files, 1u);
    }
  }

  static void write_good(const std::filesystem::path& folder) {
    write_hdf5_atomically(folder / "a.h5", [](FileWriter& file) { file.set_attribute("n", 1); });
  }
};

TEST_P(Hdf5FullDisk, FileSystem) {
  const test::SmallFileSystem disk(room);
  if (!disk.mounted()) GTEST_SKIP() << "this process may not mount";
  write_good(disk.path());
  fill(disk.path(), "No space left on device");
}

TEST_P(Hdf5FullDisk, FileSizeLimit) {
  const test::TemporaryFolder folder;
  write_good(folder.path());
  const test::FileSizeLimit limit(room);
  fill(folder.path(), "File too large");
}

INSTANTIATE_TEST_SUITE_P(Loads, Hdf5FullDisk,
                         testing::Values(Load{"large", 200000, 1}, Load{"just", 65500, 1},
                                         Load{"many", 100, 800}, Load{"tiny", 1, 3000}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace annulus::io
