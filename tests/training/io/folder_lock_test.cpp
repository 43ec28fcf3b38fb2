
#include "training/io/folder_lock.hpp"
#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::io {
namespace {

namespace fs = std::filesystem;

using FolderLocks = annulus::test::FolderTest;

TEST_F(FolderLocks, HasOneHolder) {
  {
    const FolderLock lock(folder_.path(), {"run.lock", "in use"});
    EXPECT_EQ(lock.missing(), "");
    EXPECT_EQ(error_text([&] {
                FolderLock second(folder_.path(), {"run.lock", "taken by another"});
              }),
              "taken by another");
    const FolderLock other(folder_.path(), {"other.lock", "in use"});
  }
  EXPECT_NO_THROW(FolderLock(folder_.path(), {"run.lock", "in use"}));
  EXPECT_TRUE(fs::exists(folder_.path() / "run.lock"));
}

TEST_F(FolderLocks, NamesWhatCannotBeOpened) {
  const fs::path file = folder_.write("file", "");
  EXPECT_THAT(error_text([&] {
                FolderLock(file, {"run.lock", "in use"});
              }),
              mentions((file / "run.lock").string()));
}

TEST_F(FolderLocks, LeavesAFolderThatCannotBeWrittenAsItIs) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  fs::permissions(folder_.path(), fs::perms::owner_read | fs::perms::owner_exec);
  {
    const FolderLock lock(folder_.path(), {"run.lock", "in use"});
    EXPECT_EQ(lock.missing(), "Permission denied");
  }
  fs::permissions(folder_.path(), fs::perms::owner_all);
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(FolderLocks, TellsWhenItsFolderIsNotInPlaceAnyMore) {
  const fs::path path = folder_.path() / "run";
  fs::create_directory(path);
  const FolderLock lock(path, {"run.lock", "in use"});
  EXPECT_TRUE(lock.in_place());
  fs::rename(path, folder_.path() / "moved");
  EXPECT_FALSE(lock.in_place());
  fs::create_directory(path);
  folder_.write("run/run.lock", "");
  EXPECT_FALSE(lock.in_place());
  fs::remove_all(path);
  fs::rename(folder_.path() / "moved", path);
  EXPECT_TRUE(lock.in_place());
  fs::remove_all(path);
  EXPECT_FALSE(lock.in_place());
}

}  // namespace
}  // namespace annulus::io
