#include <gtest/gtest.h>

#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"
#include "training/checkpoint/checksum_line.hpp"
#include "training/checkpoint/kept_files.hpp"
#include "training/io/atomic.hpp"

namespace annulus::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class KeptFilesTest : public testing::Test {
 protected:
  KeptFilesTest() {
    fs::create_directories(path_ / "run/checkpoints/step-00000003");
    write_kept_files(path_ / "run", files_);
  }

  const annulus::test::TemporaryFolder folder_;
  const fs::path path_ = folder_.path();
  const KeptFiles files_{.vocabulary = 257,
                         .contents = {{"a.json", "{}"}, {"empty", ""}, {"b.model", std::string(3, '\0')}}};
};

TEST_F(KeptFilesTest, AreFoundForEveryCheckpointOfTheRun) {
  const fs::path kept = kept_files_of(path_ / "run/checkpoints/step-00000003");
  EXPECT_EQ(read_kept_files(kept), files_);
  folder_.write("run/checkpoints/step-00000006.h5", "of version 2");
  EXPECT_EQ(kept_files_of(path_ / "run/checkpoints/step-00000006.h5"), kept);
  fs::create_symlink("run/checkpoints/step-00000003", path_ / "best");
  EXPECT_EQ(kept_files_of(path_ / "best"), kept);
  // Elsewhere they are no run's: the checkpoint may have its own.
  fs::rename(path_ / "run/checkpoints/step-00000003", path_ / "run/moved");
  EXPECT_EQ(kept_files_of(path_ / "run/moved"), fs::path());
  write_kept_files(path_ / "run/moved", {.vocabulary = 5, .contents = {{"c", "d"}}});
  EXPECT_EQ(read_kept_files(kept_files_of(path_ / "run/moved")).vocabulary, 5);
}

TEST_F(KeptFilesTest, AreReplacedAsAWhole) {
  write_kept_files(path_ / "run", {.vocabulary = 5, .contents = {{"c", "d"}}});
  EXPECT_FALSE(fs::exists(path_ / "run/model_files/a.json"));
  write_kept_files(path_ / "run", {});
  EXPECT_FALSE(fs::exists(path_ / "run/model_files"));
  EXPECT_EQ(std::distance(fs::directory_iterator(path_ / "run"), fs::directory_iterator()), 1);
  // What is not ours stays.
  fs::create_directory(path_ / "run/model_files");
  folder_.write("run/model_files/notes", "of somebody");
  write_kept_files(path_ / "run", {});
  EXPECT_THAT(error_text([&] { write_kept_files(path_ / "run", files_); }), HasSubstr("model_files' exists"));
  EXPECT_TRUE(fs::exists(path_ / "run/model_files/notes"));
}

TEST_F(KeptFilesTest, NothingOutsideOfTheirFolderIsRead) {
  const fs::path kept = path_ / "run/model_files";
  folder_.write("secret", "text");
  for (const char* name : {"../secret", "/etc/passwd", ".", "..", "", ".hidden", "a/b"}) {
    const std::string object =
        R"({"format":"annulus-model-files","version":1,"vocabulary":1,"files":[{"name":")" +
        std::string(name) + R"(","bytes":4,"crc32":1}]})";
    io::write_text_atomically(kept / kept_files_manifest, with_checksum_line(object));
    EXPECT_THAT(error_text([&] { read_kept_files(kept); }),
                AllOf(HasSubstr("files.json'"), HasSubstr("outside"), Not(HasSubstr("\n"))))
        << name;
  }
  for (const char* object :
       {"{}", R"({"format":1})", R"({"format":"annulus-model-files","version":1,"vocabulary":"x"})",
        R"({"format":"annulus-model-files","version":1,"vocabulary":1,"files":[3]})"}) {
    io::write_text_atomically(kept / kept_files_manifest, with_checksum_line(object));
    EXPECT_THAT(error_text([&] { read_kept_files(kept); }), HasSubstr("files.json'")) << object;
  }
  // Nothing is read that is too large to be what it should be.
  fs::resize_file(kept / kept_files_manifest, std::uintmax_t{1} << 40);
  EXPECT_THAT(error_text([&] { read_kept_files(kept); }), HasSubstr("files.json' has more than 1 MiB"));
}

}  // namespace
}  // namespace annulus::checkpoint
