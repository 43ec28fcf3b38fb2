#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/io/atomic.hpp>
#include <annulus/io/hdf5_writer.hpp>

#include "support/error_text.hpp"
#include "support/full_disk.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Writes "x": i32 (2, 3) and "g", and gives the file's name.
std::string good_file(const test::TemporaryFolder& folder) {
  write_hdf5_atomically(folder.file("good.h5"), [&](FileWriter& file) {
    file.write("x", std::span<const std::int32_t>(std::vector<std::int32_t>(6, 1)), {2, 3});
    file.create_group("g");
    file.set_attribute("text", "t");
    file.set_attribute("n", 1);
    file.set_attribute("real", 0.5);
  });
  return folder.file("good.h5");
}

std::string open_error(const std::string& path) {
  return error_text([&] { File::open(path); });
}

TEST(Hdf5Errors, MissingFile) {
  const test::TemporaryFolder folder;
  EXPECT_THAT(open_error(folder.file("none.h5")), mentions(folder.file("none.h5"), "No such file"));
}

TEST(Hdf5Errors, Folder) {
  const test::TemporaryFolder folder;
  EXPECT_THAT(open_error(folder.path()), HasSubstr("is a folder: give an HDF5 file"));
}

TEST(Hdf5Errors, EmptyAndForeignFiles) {
  const test::TemporaryFolder folder;
  EXPECT_THAT(open_error(folder.write("empty.h5", "")), HasSubstr("empty.h5' is empty"));
  EXPECT_THAT(open_error(folder.write("text.h5", "Call me Ishmael.")),
              HasSubstr("text.h5' is not an HDF5 file"));
}

TEST(Hdf5Errors, TruncatedFileOfAnyLength) {
  const test::TemporaryFolder folder;
  const std::string bytes = read_text(good_file(folder));
  for (std::size_t length :
       {std::size_t{8}, std::size_t{40}, std::size_t{96}, bytes.size() / 2, bytes.size() - 1}) {
    const std::string path = folder.write("cut.h5", bytes.substr(0, length));
    EXPECT_THAT(open_error(path),
                AllOf(HasSubstr(path), testing::AnyOf(HasSubstr("truncated"), HasSubstr("HDF5"))))
        << length;
  }
  EXPECT_THAT(open_error(folder.write("cut.h5", bytes.substr(0, bytes.size() - 1))), HasSubstr("truncated"));
}

TEST(Hdf5Errors, FileThatAnotherProgramIsWriting) {
  const test::TemporaryFolder folder;
  const std::string path = good_file(folder);
  const int writer = ::open(path.c_str(), O_RDWR);
  ASSERT_EQ(::flock(writer, LOCK_EX), 0);  // what HDF5 does to a file that it writes
  EXPECT_THAT(open_error(path), mentions(path, "another program has locked the file"));
  ::close(writer);
  EXPECT_EQ(open_error(path), "no error");
}

TEST(Hdf5Errors, MissingThingsAreNamed) {
  const test::TemporaryFolder folder;
  const File file = File::open(good_file(folder));
  EXPECT_THAT(error_text([&] { file.dataset("y"); }), mentions(file.file(), "no dataset '/y'"));
  EXPECT_THAT(error_text([&] { file.dataset("g"); }), HasSubstr("'/g' is no dataset"));
  EXPECT_THAT(error_text([&] { file.group("h"); }), HasSubstr("no group '/h'"));
  EXPECT_THAT(error_text([&] { file.group("x"); }), HasSubstr("'/x' is no group"));
  EXPECT_THAT(error_text([&] { file.integer_attribute("y"); }), mentions(file.file(), "no attribute 'y'"));
}

TEST(Hdf5Errors, WrongTypesAndShapes) {
  const test::TemporaryFolder folder;
  const File file = File::open(good_file(folder));
  EXPECT_THAT(error_text([&] { file.read<float>("x"); }), mentions(file.file(), "'/x' holds i32, not f32"));
  const Dataset x = file.dataset("x");
  EXPECT_THAT(error_text([&] { x.require_rank(1); }), HasSubstr("has 2 dimensions, not 1"));
  std::vector<std::int32_t> out(4);
  EXPECT_THAT(error_text([&] { x.read(std::span(out)); }), HasSubstr("room for 4 elements was given, 6"));
  EXPECT_THAT(error_text([&] {
                x.read({{0}, {4}}, std::span(out));
              }),
              HasSubstr("has 1 dimensions, the dataset 2"));
  EXPECT_THAT(error_text([&] {
                x.read({{1, 0}, {2, 2}}, std::span(out));
              }),
              mentions("up to 3 of dimension 0", "[2, 3]"));
  EXPECT_THAT(error_text([&] { file.string_attribute("n"); }), HasSubstr("'n' of '/' is not a string"));
  EXPECT_THAT(error_text([&] { file.integer_attribute("text"); }),
              HasSubstr("'text' of '/' is not an integer"));
  EXPECT_THAT(error_text([&] { file.integer_attribute("real"); }), HasSubstr("is not an integer"));
  EXPECT_THAT(error_text([&] { file.double_attribute("text"); }), HasSubstr("is not a number"));
}

TEST(Hdf5Errors, MakingAThingTwice) {
  const test::TemporaryFolder folder;
  FileWriter file = FileWriter::create(folder.file("a.h5"));
  file.create_group("g");
  EXPECT_THAT(error_text([&] { file.create_group("g"); }), HasSubstr("cannot make the group '/g'"));
  EXPECT_THAT(error_text([&] { file.create_dataset("g", DType::f32, {1}); }),
              HasSubstr("cannot make the dataset '/g'"));
}

TEST(Hdf5Errors, UnwritableFolders) {
  const test::TemporaryFolder folder;
  const auto write = [](const std::string& path) {
    return error_text([&] { write_hdf5_atomically(path, [](FileWriter&) {}); });
  };
  EXPECT_THAT(write(folder.file("no/a.h5")), mentions(folder.file("no/a.h5"), "No such file"));
  folder.write("file", "x");
  EXPECT_THAT(write(folder.file("file/a.h5")), HasSubstr("Not a directory"));
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  std::filesystem::permissions(folder.path(),
                               std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  EXPECT_THAT(write(folder.file("a.h5")), mentions("Permission denied", "check the permissions"));
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_all);
}

TEST(Hdf5Errors, ReadOnlyFileSystem) {
  test::SmallFileSystem disk(1 << 20);
  if (!disk.mounted() || !disk.make_read_only()) GTEST_SKIP() << "this process may not mount";
  EXPECT_THAT(error_text([&] { write_hdf5_atomically(disk.path() / "a.h5", [](FileWriter&) {}); }),
              mentions("Read-only file system", "writable file system"));
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
  fill(disk.path(), "No space left on device: free some space");
}

TEST_P(Hdf5FullDisk, FileSizeLimit) {
  const test::TemporaryFolder folder;
  write_good(folder.path());
  const test::FileSizeLimit limit(room);
  fill(folder.path(), "File too large: raise the limit on file sizes");
}

INSTANTIATE_TEST_SUITE_P(Loads, Hdf5FullDisk,
                         testing::Values(Load{"large", 200000, 1}, Load{"just", 65400, 1},
                                         Load{"many", 100, 800}, Load{"tiny", 1, 3000}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace annulus::io
