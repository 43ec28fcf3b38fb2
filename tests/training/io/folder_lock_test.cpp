#include <unistd.h>

#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"
#include "training/io/folder_lock.hpp"

namespace annulus::io {
namespace {

namespace fs = std::filesystem;

TEST(FolderLock, HasOneHolder) {
  const annulus::test::TemporaryFolder folder;
  {
    const FolderLock lock(folder.path(), {"run.lock", "in use"});
    EXPECT_EQ(lock.missing(), "");
    EXPECT_EQ(error_text([&] {
                FolderLock second(folder.path(), {"run.lock", "taken by another"});
              }),
              "taken by another");
    const FolderLock other(folder.path(), {"other.lock", "in use"});
  }
  EXPECT_NO_THROW(FolderLock(folder.path(), {"run.lock", "in use"}));
  EXPECT_TRUE(fs::exists(folder.path() / "run.lock"));
}

TEST(FolderLock, NamesWhatCannotBeOpened) {
  const annulus::test::TemporaryFolder folder;
  const fs::path file = folder.write("file", "");
  EXPECT_THAT(error_text([&] {
                FolderLock(file, {"run.lock", "in use"});
              }),
              mentions((file / "run.lock").string()));
}

TEST(FolderLock, LeavesAFolderThatCannotBeWrittenAsItIs) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const annulus::test::TemporaryFolder folder;
  fs::permissions(folder.path(), fs::perms::owner_read | fs::perms::owner_exec);
  {
    const FolderLock lock(folder.path(), {"run.lock", "in use"});
    EXPECT_EQ(lock.missing(), "Permission denied");
  }
  fs::permissions(folder.path(), fs::perms::owner_all);
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(FolderLock, TellsWhenItsFolderIsNotInPlaceAnyMore) {
  const annulus::test::TemporaryFolder folder;
  const fs::path path = folder.path() / "run";
  fs::create_directory(path);
  const FolderLock lock(path, {"run.lock", "in use"});
  EXPECT_TRUE(lock.in_place());
  fs::rename(path, folder.path() / "moved");
  EXPECT_FALSE(lock.in_place());
  fs::create_directory(path);
  folder.write("run/run.lock", "");
  EXPECT_FALSE(lock.in_place());
  fs::remove_all(path);
  fs::rename(folder.path() / "moved", path);
  EXPECT_TRUE(lock.in_place());
  fs::remove_all(path);
  EXPECT_FALSE(lock.in_place());
}

}  // namespace
}  // namespace annulus::io
