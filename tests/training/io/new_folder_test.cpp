
#include "training/io/new_folder.hpp"
#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::io {
namespace {

namespace fs = std::filesystem;

class NewFolderTest : public testing::Test {
 protected:
  std::size_t entries() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()));
  }
  const annulus::test::TemporaryFolder folder_;
};

TEST_F(NewFolderTest, IsThereWithAllItsFilesOrNotAtAll) {
  {
    NewFolder folder(folder_.path() / "a/");  // as shells complete it
    std::ofstream(folder.temporary() / "file") << "text";
    EXPECT_FALSE(fs::exists(folder_.path() / "a"));
    folder.commit();
  }
  EXPECT_TRUE(fs::exists(folder_.path() / "a" / "file"));
  { const NewFolder given_up(folder_.path() / "b"); }
  EXPECT_EQ(entries(), 1u);
}

TEST_F(NewFolderTest, TakesNoNameThatIsTaken) {
  fs::create_symlink("nowhere", folder_.path() / "link");
  folder_.write("file", "text");
  for (const char* name : {"link", "file", "no/such"})
    EXPECT_THAT(error_text([&] { NewFolder(folder_.path() / name); }), mentions(folder_.file(name)));
  NewFolder folder(folder_.path() / "a");
  fs::create_directory(folder_.path() / "a");
  EXPECT_THAT(error_text([&] { folder.commit(); }), mentions(folder_.file("a")));
}

/// What a process leaves that is killed, and names that only look like it.
TEST_F(NewFolderTest, RemovesWhatKilledProcessesHaveLeftAndNothingElse) {
  const std::string digits(32, 'a'), name = "a.tmp-" + digits;
  const std::vector<std::string> others = {
      "a.tmp-1",         "a.tmp-" + digits + "0", "a.tmp-" + std::string(32, 'A'),
      "b.tmp-" + digits, "aa.tmp-" + digits,      "notes.tmp-" + digits};
  for (const std::string& other : others) fs::create_directory(folder_.path() / other);
  folder_.write("a.tmp-" + std::string(32, 'f'), "a file of somebody");
  fs::create_directory_symlink("b.tmp-" + digits, folder_.path() / ("a.tmp-" + std::string(32, 'e')));
  fs::create_directories(folder_.path() / name / "inside");
  folder_.write(name + "/file", "text");
  const std::size_t before = entries();
  { const NewFolder next(folder_.path() / "a"); }
  EXPECT_FALSE(fs::exists(folder_.path() / name));
  EXPECT_EQ(entries(), before - 1);
}

TEST_F(NewFolderTest, LeavesAFolderThatIsBeingFilled) {
  NewFolder first(folder_.path() / "a");
  std::ofstream(first.temporary() / "file") << "text";
  { const NewFolder second(folder_.path() / "a"); }
  first.commit();
  EXPECT_TRUE(fs::exists(folder_.path() / "a" / "file"));
}

}  // namespace
}  // namespace annulus::io
