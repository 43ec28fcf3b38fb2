// The door through which files come in: what is no regular file, leads elsewhere or is too large stays
// outside.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/file.hpp"
#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"

namespace annulus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr FileKind small{"a small file", 1000};

class File : public testing::Test {
 protected:
  std::string pipe() const {
    const std::string name = folder_.file("pipe");
    ::mkfifo(name.c_str(), 0600);
    return name;
  }
  std::string link_to(const std::string& file) const {
    std::filesystem::create_symlink(file, folder_.file("link"));
    return folder_.file("link");
  }
  std::string said_of(const std::string& path, Links links = Links::follow) const {
    return error_text([&] { read_text(path, small, links); });
  }

  const test::TemporaryFolder folder_;
};

TEST_F(File, IsReadWhole) {
  std::string text;
  for (int i = 0; i < 300000; ++i) text += std::to_string(i);
  EXPECT_EQ(read_text(folder_.write("a", text)), text);
  EXPECT_EQ(read_text(folder_.write("empty", "")), "");
  EXPECT_THAT(read_text("/proc/self/status"), HasSubstr("Name:"));  // the system says that it has 0 bytes
  EXPECT_EQ(read_text(link_to(folder_.file("a"))), text);
}

TEST_F(File, OtherThingsAreNamedAndNeverWaitedFor) {
  EXPECT_THAT(said_of(folder_.file("none")), mentions("/none'", "No such file"));
  EXPECT_THAT(said_of(pipe()), HasSubstr("/pipe' is no regular file"));
  EXPECT_THAT(said_of("/dev/zero"), HasSubstr("'/dev/zero' is no regular file"));
  EXPECT_THAT(said_of(folder_.path()), HasSubstr("is a folder: give a small file"));
}

TEST_F(File, LinksAreRefusedWhereTheProgramOwnsTheName) {
  const std::string link = link_to(folder_.write("a", "text"));
  EXPECT_EQ(said_of(link), "no error");
  EXPECT_THAT(said_of(link, Links::refuse), mentions(link, "is a symbolic link"));
  EXPECT_THAT(error_text([&] { open_own_file(link, true); }), HasSubstr("is a symbolic link"));
  EXPECT_EQ(read_text(folder_.file("a")), "text");
  EXPECT_THAT(error_text([&] { open_own_file(pipe()); }), HasSubstr("is no regular file"));
  open_own_file(folder_.file("new"));
  EXPECT_EQ(read_text(folder_.file("new"), small, Links::refuse), "");
}

TEST_F(File, LargerOnesThanTheirKindAreNotRead) {
  EXPECT_EQ(said_of(folder_.write("a", std::string(1000, 'x'))), "no error");
  EXPECT_THAT(said_of(folder_.write("b", std::string(1001, 'x'))),
              HasSubstr("the most that a small file may have"));
  const std::string zeros = folder_.write("zeros", "");
  ASSERT_EQ(::truncate(zeros.c_str(), off_t{1} << 40), 0);  // reading it would take hours
  EXPECT_THAT(said_of(zeros), HasSubstr("/zeros' has more than"));
  EXPECT_THAT(error_text([&] { read_text(zeros); }), HasSubstr("/zeros' has more than 1024 MiB"));
  LineReader lines(zeros, small);
  std::string line;
  EXPECT_THAT(error_text([&] { lines.next(line); }), mentions("/zeros'", "line 1"));
}

TEST_F(File, LinesComeOneByOne) {
  const std::string longest(900, 'x');
  LineReader lines(folder_.write("a", "one\n\n" + longest + "\ntorn"), small);
  std::vector<std::string> read;
  for (std::string line; lines.next(line);) {
    read.push_back(line);
    EXPECT_EQ(lines.number(), std::ssize(read));
    EXPECT_EQ(lines.complete(), line != "torn");
  }
  EXPECT_THAT(read, ElementsAre("one", "", longest, "torn"));
  std::string none;
  EXPECT_FALSE(LineReader(folder_.write("empty", ""), small).next(none));
  std::string many;
  for (int i = 0; i < 50000; ++i) many += std::to_string(i) + "\n";
  LineReader all(folder_.write("many", many), small);
  int count = 0;
  for (std::string line; all.next(line); ++count) ASSERT_EQ(line, std::to_string(count));
  EXPECT_EQ(count, 50000);
}

TEST(PlainName, IsNothingThatLeadsElsewhere) {
  for (const char* name : {"a", ".a", "a..b", "n1.cluster"}) EXPECT_TRUE(is_plain_name(name)) << name;
  for (const std::string_view name : {"", ".", "..", "/a", "a/b", "../a"})
    EXPECT_FALSE(is_plain_name(name)) << name;
  EXPECT_FALSE(is_plain_name(std::string_view("a\0b", 3)));
}

}  // namespace
}  // namespace annulus
