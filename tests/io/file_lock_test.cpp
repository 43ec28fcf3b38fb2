#include <annulus/io/file_lock.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::io {
namespace {

namespace fs = std::filesystem;
using annulus::test::error_text;

TEST(FileLock, HasOneHolder) {
  const annulus::test::TemporaryFolder folder;
  for (const fs::path& path : {folder.path() / "new.lock", folder.path()}) {
    {
      const FileLock lock(path, "in use");
      EXPECT_EQ(lock.missing(), "");
      EXPECT_EQ(error_text([&] { FileLock second(path, "taken by another"); }), "taken by another");
      const FileLock other(folder.path() / "other.lock", "in use");
    }
    EXPECT_NO_THROW(FileLock(path, "in use"));
  }
}

TEST(FileLock, NamesWhatCannotBeOpened) {
  const annulus::test::TemporaryFolder folder;
  const fs::path below = fs::path(folder.write("file", "")) / "run.lock";
  EXPECT_THAT(error_text([&] { FileLock(below, "in use"); }), testing::HasSubstr(below.string()));
}

}  // namespace
}  // namespace annulus::io
