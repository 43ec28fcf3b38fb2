// The folder of a run's checkpoints: what counts, what stays, and what a save leaves that failed.
#include "training/checkpoint/folder.hpp"

#include <gtest/gtest.h>

#include "support/error_text.hpp"
#include "support/full_disk.hpp"
#include "training/checkpoint/states.hpp"
#include "training/io/atomic.hpp"

namespace annulus::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Folder : public testing::Test {
 protected:
  void save(std::int64_t step) { save(checkpoints_, step); }
  void save(CheckpointFolder& checkpoints, std::int64_t step) const {
    const fs::path made = checkpoints.begin(step);
    test::write_checkpoint(made, state_, step, 2);
    checkpoints.commit(made, step);
  }
  void damage(std::int64_t step) const { fs::remove(checkpoints_.path_of(step) / part_file(1, 2)); }
  fs::path newest() { return checkpoints_.newest_good().value().path(); }

  const annulus::test::TemporaryFolder folder_;
  const fs::path path_ = folder_.path() / "checkpoints";
  const test::State state_{1};
  CheckpointFolder checkpoints_{path_, {.keep = 2}};
};

TEST_F(Folder, FilesOfVersionsBeforeAreNotTakenForNone) {
  fs::create_directory(path_);
  folder_.write("checkpoints/step-00000120.h5", "\x89HDF\r\n\x1a\n");
  EXPECT_THAT(error_text([&] { checkpoints_.newest_good(); }), HasSubstr(path_ / "step-00000120.h5"));
  save(130);
  EXPECT_EQ(newest(), checkpoints_.path_of(130));
}

TEST_F(Folder, KeepsTheNewest) {
  EXPECT_THAT(checkpoints_.steps(), IsEmpty());
  EXPECT_FALSE(checkpoints_.newest_good());
  for (const std::int64_t step : {5, 9, 10, 100, 123456789}) save(step);
  EXPECT_THAT(checkpoints_.steps(), ElementsAre(100, 123456789));
  EXPECT_EQ(newest(), checkpoints_.path_of(123456789));
  EXPECT_THAT(test::names_in(path_), ElementsAre("step-00000100", "step-123456789"));
  EXPECT_TRUE(test::holds(Checkpoint(newest()), state_));
}

TEST_F(Folder, KeepsTheStepsThatStayForEver) {
  CheckpointFolder checkpoints(path_, {.keep = 1, .keep_every = 10});
  for (const std::int64_t step : {5, 10, 15, 20, 25, 30}) save(checkpoints, step);
  EXPECT_THAT(checkpoints.steps(), ElementsAre(10, 20, 30));
  save(checkpoints, 35);
  EXPECT_THAT(checkpoints.steps(), ElementsAre(10, 20, 30, 35));
}

TEST_F(Folder, WithoutItsManifestIsNoCheckpoint) {
  save(3);
  const fs::path unfinished = checkpoints_.begin(6);
  test::write_checkpoint(unfinished, state_, 6, 2);
  EXPECT_THAT(checkpoints_.steps(), ElementsAre(3));  // it has not got its name
  fs::rename(unfinished, path_ / "step-00000006");
  fs::remove(path_ / "step-00000006" / manifest_file);
  EXPECT_THAT(checkpoints_.steps(), ElementsAre(3));
  EXPECT_EQ(newest(), checkpoints_.path_of(3));
  save(6);  // takes its place
  EXPECT_EQ(newest(), checkpoints_.path_of(6));
}

TEST_F(Folder, ADamagedNewestIsPassedOverAndDoesNotPushOutGoodOnes) {
  for (const std::int64_t step : {3, 6}) save(step);
  damage(6);
  testing::internal::CaptureStdout();
  EXPECT_EQ(newest(), checkpoints_.path_of(3));
  EXPECT_THAT(testing::internal::GetCapturedStdout(), mentions("warn", checkpoints_.path_of(6).string()));
  save(4);  // the damaged one counts for nothing
  EXPECT_THAT(checkpoints_.steps(), ElementsAre(3, 4, 6));
  save(5);
  EXPECT_THAT(checkpoints_.steps(), ElementsAre(4, 5, 6));
  save(6);  // and is replaced in the end
  EXPECT_EQ(newest(), checkpoints_.path_of(6));
  EXPECT_THAT(checkpoints_.steps(), ElementsAre(5, 6));
}

TEST_F(Folder, WhenAllAreDamagedTheErrorSaysWhatToDo) {
  for (const std::int64_t step : {3, 6}) save(step);
  EXPECT_EQ(checkpoints_.newest_good(6)->path(), checkpoints_.path_of(3));
  EXPECT_THAT(error_text([&] { checkpoints_.newest_good(3); }), HasSubstr("none of the 2"));
  damage(3);
  damage(6);
  EXPECT_THAT(error_text([&] { checkpoints_.newest_good(); }),
              mentions("none of the 2 checkpoints", path_.string(), "another run.folder"));
}

TEST_F(Folder, ASecondRunThatSavesTheSameStepIsNamed) {
  CheckpointFolder other(path_, {.keep = 2});
  const fs::path mine = checkpoints_.begin(6), theirs = other.begin(6);
  EXPECT_NE(mine, theirs);
  for (const fs::path& folder : {mine, theirs}) test::write_checkpoint(folder, state_, 6, 2);
  other.commit(theirs, 6);
  EXPECT_THAT(error_text([&] { checkpoints_.commit(mine, 6); }),
              HasSubstr("step-00000006 was saved meanwhile by another run"));
  EXPECT_TRUE(test::holds(Checkpoint(newest()), state_));
}

TEST_F(Folder, OnlyLeftoversAreRemoved) {
  save(3);
  checkpoints_.begin(6);
  fs::create_directory(path_ / "step-00000006.tmp-early");
  const std::string digits = "0123456789abcdef0123456789abcdef";
  const std::vector<std::string> others = {"mine.h5",
                                           "notes.tmp-" + digits,
                                           "step-00000003",
                                           "step-00000006.tmp-" + digits + ".old",
                                           "step-00000006.tmp-4711",
                                           "step-00000006.tmp-notes",
                                           "step-x.h5"};
  for (const std::string& name : others)
    if (name != "step-00000003") io::write_text_atomically(path_ / name, "text");
  checkpoints_.remove_leftovers();
  EXPECT_THAT(test::names_in(path_), testing::ElementsAreArray(others));
  EXPECT_THAT(checkpoints_.steps(), ElementsAre(3));
}

TEST_F(Folder, AFullDiskNamesTheFileAndLeavesWhatWasThere) {
  const fs::path made = checkpoints_.begin(3);
  {
    const annulus::test::FileSizeLimit limit(1000);
    EXPECT_THAT(error_text([&] { test::write_checkpoint(made, state_, 3, 2); }),
                mentions(part_file(0, 2), "ulimit"));
  }
  CheckpointFolder::discard(made);
  EXPECT_THAT(test::names_in(path_), IsEmpty());
  annulus::test::SmallFileSystem disk(36 * 1024);
  if (!disk.mounted()) GTEST_SKIP() << "mounting a small file system needs root";
  CheckpointFolder small(disk.path() / "checkpoints", {.keep = 2});
  save(small, 1);
  io::write_text_atomically(disk.path() / "filler", std::string(20 * 1024, 'x'));
  EXPECT_THAT(error_text([&] { save(small, 2); }), mentions("step-00000002", "space"));
  EXPECT_THAT(small.steps(), ElementsAre(1));
  EXPECT_TRUE(test::holds(*small.newest_good(), state_));
  fs::remove(disk.path() / "filler");
  small.remove_leftovers();
  CheckpointFolder one(disk.path() / "checkpoints", {.keep = 1});
  save(one, 2);
  EXPECT_THAT(test::names_in(disk.path() / "checkpoints"), ElementsAre("step-00000002"));
}

TEST_F(Folder, AFileInItsPlaceIsNamed) {
  io::write_text_atomically(path_, "a file");
  EXPECT_THAT(error_text([&] { checkpoints_.begin(3); }), HasSubstr(path_.string()));
}

TEST_F(Folder, ALinkInItsPlaceIsRefused) {
  const fs::path elsewhere = folder_.path() / "elsewhere";
  fs::create_directory(elsewhere);
  fs::create_directory_symlink(elsewhere, path_);
  EXPECT_THAT(error_text([&] { checkpoints_.begin(3); }), mentions(path_.string(), "is a symbolic link"));
  EXPECT_THAT(error_text([&] { CheckpointFolder(path_, {}); }), HasSubstr("is a symbolic link"));
  EXPECT_TRUE(fs::is_empty(elsewhere));
}

TEST(FolderOfCheckpoints, ThatCannotTakeAFolderSaysWhy) {
  // The system has folders in which nobody makes any.
  const std::string said = error_text([] { CheckpointFolder("/proc/self/task", {}).begin(3); });
  EXPECT_THAT(said, mentions("/proc/self/task/step-00000003", "cannot be made"));
  EXPECT_THAT(said, testing::Not(HasSubstr("exists")));
}

}  // namespace
}  // namespace annulus::checkpoint
