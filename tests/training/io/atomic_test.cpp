#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "support/error_text.hpp"
#include "support/full_disk.hpp"
#include "support/temporary_folder.hpp"
#include "training/io/atomic.hpp"
#include "training/io/hdf5_files/hdf5_writer.hpp"

namespace annulus::io {
namespace {

using testing::ElementsAre;

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(TemporaryName, IsKnownByItsForm) {
  const std::string name = temporary_name("folder/a").filename();
  EXPECT_TRUE(is_temporary_name(name, "a"));
  EXPECT_FALSE(is_temporary_name(name, "b"));
  EXPECT_FALSE(is_temporary_name(name + "0", "a"));
  EXPECT_FALSE(is_temporary_name(name.substr(0, name.size() - 1), "a"));
  EXPECT_FALSE(is_temporary_name(name.substr(0, name.size() - 1) + "g", "a"));
  EXPECT_FALSE(is_temporary_name("a.tmp-", "a"));
}

TEST(WriteAtomically, ReplacesTheFileAndLeavesNothingElse) {
  const test::TemporaryFolder folder;
  write_text_atomically(folder.file("a"), "first");
  write_text_atomically(folder.file("a"), "second");
  EXPECT_EQ(read_text(folder.file("a")), "second");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("a"));
}

TEST(WriteAtomically, WritesBesideUnderANameThatNobodyGuesses) {
  const test::TemporaryFolder folder;
  write_text_atomically(folder.file("a"), "old");
  std::set<std::string> names;
  for (int i = 0; i < 3; ++i) {
    write_atomically(folder.file("a"), [&](const std::filesystem::path& temporary) {
      EXPECT_THAT(temporary.string(), testing::MatchesRegex(folder.file("a") + "\\.tmp-[0-9a-f]{32}"));
      EXPECT_TRUE(names.insert(temporary.string()).second);
      EXPECT_EQ(std::filesystem::file_size(temporary), 0U);  // it is there already, and ours
      folder.write(temporary.filename().string(), "new");
      EXPECT_EQ(read_text(folder.file("a")), i == 0 ? "old" : "new");
    });
  }
  EXPECT_EQ(read_text(folder.file("a")), "new");
}

TEST(WriteAtomically, FollowsNoLinkInPlaceOfTheTemporaryFile) {
  const test::TemporaryFolder folder;
  folder.write("victim", "precious");
  write_text_atomically(folder.file("a"), "old");
  // The name that earlier versions used.
  std::filesystem::create_symlink("victim", folder.file("a.tmp-" + std::to_string(::getpid())));
  write_text_atomically(folder.file("a"), "new");
  EXPECT_FALSE(std::filesystem::is_symlink(folder.file("a")));
  EXPECT_EQ(read_text(folder.file("a")), "new");
  // Somebody who sees the name and may write to the folder puts a link there, before and after it is written.
  for (const bool before : {true, false}) {
    const auto write = [&] {
      write_atomically(folder.file("a"), [&](const std::filesystem::path& temporary) {
        const auto plant = [&] {
          std::filesystem::remove(temporary);
          std::filesystem::create_symlink("victim", temporary);
        };
        if (before) plant();
        FileWriter::create(temporary).close();
        if (!before) plant();
      });
    };
    EXPECT_THAT(error_text(write), mentions(folder.file("a")));
  }
  EXPECT_EQ(read_text(folder.file("a")), "new");
  EXPECT_EQ(read_text(folder.file("victim")), "precious");
}

TEST(WriteAtomically, KeepsTheOldFileWhenWritingThrows) {
  const test::TemporaryFolder folder;
  write_text_atomically(folder.file("a"), "old");
  const auto write = [&] {
    write_atomically(folder.file("a"), [&](const std::filesystem::path& temporary) {
      folder.write(temporary.filename().string(), "half");
      fail("the power went");
    });
  };
  EXPECT_EQ(error_text(write), "the power went");
  EXPECT_EQ(read_text(folder.file("a")), "old");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("a"));
}

TEST(WriteAtomically, ReplacesWhatALinkPointsTo) {
  const test::TemporaryFolder folder;
  folder.write("a", "old");
  std::filesystem::create_symlink(folder.file("a"), folder.file("link"));
  write_text_atomically(folder.file("link"), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("link")));
  EXPECT_EQ(read_text(folder.file("a")), "new");
}

TEST(WriteAtomically, RefusesALinkInThePlaceOfItsOwnFile) {
  const test::TemporaryFolder folder;
  folder.write("a", "old");
  std::filesystem::create_symlink(folder.file("a"), folder.file("link"));
  EXPECT_THAT(error_text([&] { write_text_atomically(folder.file("link"), "new", Links::refuse); }),
              mentions(folder.file("link")));
  EXPECT_EQ(read_text(folder.file("a")), "old");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("a", "link"));
}

TEST(WriteAtomically, LeavesWhatIsNoFile) {
  const test::TemporaryFolder folder;
  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(error_text([&] { write_text_atomically(pipe, "x"); }), mentions(pipe));
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("pipe"));
}

TEST(WriteAtomically, NeedsItsFolder) {
  const test::TemporaryFolder folder;
  folder.write("file", "x");
  for (const std::string& path : {folder.file("no/a"), folder.file("file/a")})
    EXPECT_THAT(error_text([&] { write_text_atomically(path, "x"); }), mentions(path));
}

TEST(WriteAtomically, AcceptsAPathWithoutFolder) {
  const test::TemporaryFolder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  write_text_atomically("a", "x");
  std::filesystem::current_path(before);
  EXPECT_EQ(read_text(folder.file("a")), "x");
}

TEST(WriteAtomically, FullDiskKeepsTheOldFile) {
  const test::TemporaryFolder folder;
  write_text_atomically(folder.file("a"), "old");
  {
    const test::FileSizeLimit limit(1000);
    EXPECT_THAT(error_text([&] { write_text_atomically(folder.file("a"), std::string(5000, 'x')); }),
                mentions(folder.file("a"), "File too large"));
  }
  EXPECT_EQ(read_text(folder.file("a")), "old");
  EXPECT_THAT(names_in(folder.path()), ElementsAre("a"));
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
