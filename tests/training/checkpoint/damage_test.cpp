// Damage is found wherever it is, and named with the file.
#include <gtest/gtest.h>

#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"
#include "training/checkpoint/states.hpp"
#include "training/io/atomic.hpp"

namespace annulus::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Damage : public testing::Test {
 protected:
  void SetUp() override { test::write_checkpoint(path_, state_, 120, 2, 16); }
  std::string found() const {
    return error_text([&] { Checkpoint(path_).verify(); });
  }

  const annulus::test::TemporaryFolder folder_;
  const fs::path path_ = folder_.path() / "step-00000120";
  const test::State state_{1};
};

TEST_F(Damage, OfAnyByteIsFound) {
  for (const std::string& name : test::names_in(path_)) {
    const fs::path file = path_ / name;
    const std::string bytes = io::read_text(file);
    for (std::size_t at = 0; at < bytes.size(); at += at < 64 || at + 64 > bytes.size() ? 1 : 7) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
      test::put(file, damaged);
      ASSERT_THAT(found(), HasSubstr(file.string())) << "byte " << at;
    }
    test::put(file, bytes);
    ASSERT_EQ(found(), "no error");
  }
}

TEST_F(Damage, OfValuesNamesTensorAndElements) {
  const fs::path part = path_ / part_file(1, 2);
  std::string bytes = io::read_text(part);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  test::put(part, bytes);
  EXPECT_THAT(found(), mentions(part.string(), "second_moment/lm_head is damaged", "elements 80 to 87",
                                "CRC-32", "--resume"));
}

TEST_F(Damage, TruncationIsFoundWhereverItHappens) {
  for (const std::string& name : test::names_in(path_)) {
    const std::string bytes = io::read_text(path_ / name);
    for (const double part : {0.0, 0.01, 0.3, 0.6, 0.9, 0.999}) {
      test::put(path_ / name, bytes.substr(0, static_cast<std::size_t>(part * double(bytes.size()))));
      EXPECT_THAT(error_text([&] { Checkpoint{path_}; }), HasSubstr((path_ / name).string())) << part;
    }
    test::put(path_ / name, bytes);
  }
}

TEST_F(Damage, OfThePartsOfAnotherCheckpointIsFound) {
  const fs::path other = folder_.path() / "other";
  test::write_checkpoint(other, test::State(2), 120, 2, 16);
  const std::string name = part_file(0, 2);
  test::put(path_ / name, io::read_text(other / name));
  EXPECT_THAT(found(), mentions(name, "damaged"));
  // A part of a checkpoint whose parts hold other elements.
  test::put(path_ / name, io::read_text(path_ / part_file(1, 2)));
  EXPECT_THAT(found(), mentions(name, "damaged"));
}

TEST_F(Damage, MissingAndLinkedPartsAndManifestsAreNamed) {
  const fs::path part = path_ / part_file(0, 2), aside = folder_.path() / "aside";
  fs::rename(part, aside);
  EXPECT_THAT(found(), mentions(part.string(), "cannot be read"));
  fs::create_symlink(aside, part);
  EXPECT_THAT(found(), mentions(part.string(), "is a symbolic link"));
  const fs::path manifest = path_ / manifest_file, elsewhere = folder_.path() / "manifest";
  fs::rename(manifest, elsewhere);
  EXPECT_THAT(found(), mentions(path_.string(), "never finished"));
  fs::create_symlink(elsewhere, manifest);
  EXPECT_THAT(found(), mentions(manifest.string(), "is a symbolic link"));
  EXPECT_THAT(error_text([&] { Checkpoint{folder_.path() / "none"}; }), HasSubstr("none"));
}

TEST_F(Damage, FilesOfVersionsBeforeAreRefused) {
  const std::string file = folder_.write("step-00000120.h5", "\x89HDF\r\n\x1a\n");
  EXPECT_THAT(error_text([&] { Checkpoint{file}; }), mentions(file, "version 3"));
}

}  // namespace
}  // namespace annulus::checkpoint
