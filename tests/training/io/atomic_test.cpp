#include <sys/stat.h>

#include <algorithm>

#include "support/error_text.hpp"
#include "support/full_disk.hpp"
#include "support/names_in.hpp"
#include "training/io/atomic.hpp"
#include "training/io/hdf5_files/hdf5_writer.hpp"

namespace annulus::io {
namespace {

using test::names_in;
using testing::ElementsAre;

TEST(TemporaryName, IsKnownByItsForm) {
  const std::string name = temporary_name("folder/a").filename();
  EXPECT_TRUE(is_temporary_name(name, "a"));
  EXPECT_FALSE(is_temporary_name(name, "b"));
  EXPECT_FALSE(is_temporary_name(name + "0", "a"));
  EXPECT_FALSE(is_temporary_name(name.substr(0, name.size() - 1), "a"));
  EXPECT_FALSE(is_temporary_name(name.substr(0, name.size() - 1) + "g", "a"));
  EXPECT_FALSE(is_temporary_name("a.tmp-", "a"));
}

using WriteAtomically = annulus::test::FolderTest;

TEST_F(WriteAtomically, ReplacesTheFileAndLeavesNothingElse) {
  write_text_atomically(folder_.file("a"), "first");
  write_text_atomically(folder_.file("a"), "second");
  EXPECT_EQ(read_text(folder_.file("a")), "second");
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("a"));
}

TEST_F(WriteAtomically, WritesBesideUnderANameThatNobodyGuesses) {
  write_text_atomically(folder_.file("a"), "old");
  std::set<std::string> names;
  for (int i = 0; i < 3; ++i) {
    write_atomically(folder_.file("a"), [&](const std::filesystem::path& temporary) {
      EXPECT_THAT(temporary.string(), testing::MatchesRegex(folder_.file("a") + "\\.tmp-[0-9a-f]{32}"));
      EXPECT_TRUE(names.insert(temporary.string()).second);
      EXPECT_EQ(std::filesystem::file_size(temporary), 0U);  // it is there already, and ours
      folder_.write(temporary.filename().string(), "new");
      EXPECT_EQ(read_text(folder_.file("a")), i == 0 ? "old" : "new");
    });
  }
  EXPECT_EQ(read_text(folder_.file("a")), "new");
}

TEST_F(WriteAtomically, FollowsNoLinkInPlaceOfTheTemporaryFile) {
  folder_.write("victim", "precious");
  write_text_atomically(folder_.file("a"), "old");
  // The name that earlier versions used.
  std::filesystem::create_symlink("victim", folder_.file("a.tmp-" + std::to_string(::getpid())));
  write_text_atomically(folder_.file("a"), "new");
  EXPECT_FALSE(std::filesystem::is_symlink(folder_.file("a")));
  EXPECT_EQ(read_text(folder_.file("a")), "new");
  // Somebody who sees the name and may write to the folder puts a link there, before and after it is written.
  for (const bool before : {true, false}) {
    const auto write = [&] {
      write_atomically(folder_.file("a"), [&](const std::filesystem::path& temporary) {
        const auto plant = [&] {
          std::filesystem::remove(temporary);
          std::filesystem::create_symlink("victim", temporary);
        };
        if (before) plant();
        FileWriter::create(temporary).close();
        if (!before) plant();
      });
    };
    EXPECT_THAT(error_text(write), mentions(folder_.file("a")));
  }
  EXPECT_EQ(read_text(folder_.file("a")), "new");
  EXPECT_EQ(read_text(folder_.file("victim")), "precious");
}

TEST_F(WriteAtomically, KeepsTheOldFileWhenWritingThrows) {
  write_text_atomically(folder_.file("a"), "old");
  const auto write = [&] {
    write_atomically(folder_.file("a"), [&](const std::filesystem::path& temporary) {
      folder_.write(temporary.filename().string(), "half");
      fail("the power went");
    });
  };
  EXPECT_EQ(error_text(write), "the power went");
  EXPECT_EQ(read_text(folder_.file("a")), "old");
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("a"));
}

TEST_F(WriteAtomically, ReplacesWhatALinkPointsTo) {
  folder_.write("a", "old");
  std::filesystem::create_symlink(folder_.file("a"), folder_.file("link"));
  write_text_atomically(folder_.file("link"), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.file("link")));
  EXPECT_EQ(read_text(folder_.file("a")), "new");
}

TEST_F(WriteAtomically, RefusesALinkInThePlaceOfItsOwnFile) {
  folder_.write("a", "old");
  std::filesystem::create_symlink(folder_.file("a"), folder_.file("link"));
  EXPECT_THAT(error_text([&] { write_text_atomically(folder_.file("link"), "new", Links::refuse); }),
              mentions(folder_.file("link")));
  EXPECT_EQ(read_text(folder_.file("a")), "old");
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("a", "link"));
}

TEST_F(WriteAtomically, LeavesWhatIsNoFile) {
  const std::string pipe = folder_.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(error_text([&] { write_text_atomically(pipe, "x"); }), mentions(pipe));
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("pipe"));
}

TEST_F(WriteAtomically, NeedsItsFolder) {
  folder_.write("file", "x");
  for (const std::string& path : {folder_.file("no/a"), folder_.file("file/a")})
    EXPECT_THAT(error_text([&] { write_text_atomically(path, "x"); }), mentions(path));
}

TEST_F(WriteAtomically, AcceptsAPathWithoutFolder) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder_.path());
  write_text_atomically("a", "x");
  std::filesystem::current_path(before);
  EXPECT_EQ(read_text(folder_.file("a")), "x");
}

TEST_F(WriteAtomically, FullDiskKeepsTheOldFile) {
  write_text_atomically(folder_.file("a"), "old");
  {
    const test::FileSizeLimit limit(1000);
    EXPECT_THAT(error_text([&] { write_text_atomically(folder_.file("a"), std::string(5000, 'x')); }),
                mentions(folder_.file("a"), "File too large"));
  }
  EXPECT_EQ(read_text(folder_.file("a")), "old");
  EXPECT_THAT(names_in(folder_.path()), ElementsAre("a"));
}

TEST(RequireWritable, TellsBeforeAnythingIsWritten) {
  const test::TemporaryFolder folder;
  folder.write("a", "old");
  require_writable(folder.file("a"));
  require_writable(folder.file("new"));
  EXPECT_EQ(read_text(folder.file("a")), "old");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("a"));
  for (const std::string& path : {folder.file("no/a"), std::string("/dev/null")})
    EXPECT_THAT(error_text([&] { require_writable(path); }), mentions(path));
}

}  // namespace
}  // namespace annulus::io
