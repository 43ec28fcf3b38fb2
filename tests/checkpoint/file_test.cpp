// Files of versions 1 and 2, which no program writes any more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <annulus/io/atomic.hpp>

#include "checkpoint/old_file.hpp"
#include "checkpoint/states.hpp"
#include "support/error_text.hpp"
#include "support/foreign_hdf5.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::checkpoint {
namespace {

namespace fs = std::filesystem;
using annulus::test::error_text;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::size_t seal_size = 35;  // of the last line and the line end before it

class OldFile : public testing::Test {
 protected:
  void SetUp() override { test::write_old_file(file_, state_, 120); }
  static std::string load_error(const fs::path& file) {
    return error_text([&] { Checkpoint(file).verify(); });
  }

  const annulus::test::TemporaryFolder folder_;
  const fs::path file_ = folder_.path() / "a.h5";
  const test::State state_{1};
};

TEST_F(OldFile, GivesBackEveryBitToAnyNumberOfReaders) {
  for (const int version : {1, 2}) {
    test::write_old_file(file_, state_, test::progress_at(120), version);
    const Checkpoint checkpoint(file_);
    EXPECT_EQ(checkpoint.progress(), test::progress_at(120));
    EXPECT_EQ(checkpoint.manifest(), nullptr);
    EXPECT_NO_THROW(checkpoint.require_tensors(state_.tensors));
    EXPECT_TRUE(test::holds(checkpoint, state_));
    for (const Slice& slice : test::pieces_of(state_.size(), 7))
      EXPECT_EQ(test::bytes_of(test::read(checkpoint, state_, Buffer::second_moment, slice.begin, slice.end)),
                test::bytes_of(std::span(state_.of(Buffer::second_moment))
                                   .subspan(std::size_t(slice.begin), std::size_t(slice.size()))));
  }
}

TEST_F(OldFile, TruncationIsFoundWhereverItHappens) {
  const std::string bytes = io::read_text(file_);
  for (const double part : {0.0, 0.01, 0.3, 0.6, 0.9, 0.999}) {
    test::put(file_, bytes.substr(0, static_cast<std::size_t>(part * double(bytes.size()))));
    EXPECT_THAT(error_text([&] { Checkpoint{file_}; }), HasSubstr(file_.string())) << part;
  }
}

TEST_F(OldFile, AFlippedByteIsFoundAnywhere) {
  const std::string bytes = io::read_text(file_);
  for (std::size_t at = 0; at < bytes.size(); at += at + 64 < bytes.size() ? 97 : 1) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    test::put(file_, damaged);
    ASSERT_THAT(error_text([&] { Checkpoint{file_}; }), HasSubstr(file_.string())) << "byte " << at;
  }
}

TEST_F(OldFile, DamageUnderAFreshSealNamesTheDataset) {
  for (const Buffer buffer : buffers) {
    test::write_old_file(file_, state_, 120);
    std::string bytes = io::read_text(file_);
    const auto at = bytes.find(test::bytes_of(std::span(state_.of(buffer)).last(8)));
    ASSERT_NE(at, std::string::npos);
    bytes[at + 5] = static_cast<char>(bytes[at + 5] ^ 1);
    test::put(file_, bytes.substr(0, bytes.size() - seal_size));
    seal_checkpoint(file_);
    EXPECT_THAT(load_error(file_),
                AllOf(HasSubstr(file_.string()), HasSubstr(std::string(name_of(buffer)) + "/lm_head"),
                      HasSubstr("CRC-32"), HasSubstr("--resume")));
  }
}

TEST_F(OldFile, ForeignFilesAndVersionsAreRefused) {
  const fs::path text = folder_.write("text.h5", "no HDF5 at all");
  EXPECT_THAT(load_error(text), HasSubstr(text.string()));
  const fs::path foreign = folder_.path() / "foreign.h5";
  io::write_hdf5_atomically(foreign, [](io::FileWriter& file) { file.set_attribute("format", "other"); });
  EXPECT_THAT(load_error(foreign), AllOf(HasSubstr(foreign.string()), HasSubstr("no checkpoint of Annulus")));
  seal_checkpoint(foreign);
  EXPECT_THAT(load_error(foreign), HasSubstr("its attribute 'format'"));
  io::write_hdf5_atomically(foreign, [](io::FileWriter& file) {
    file.set_attribute("format", "annulus-checkpoint");
    file.set_attribute("version", 3);
  });
  seal_checkpoint(foreign);
  EXPECT_THAT(load_error(foreign), HasSubstr("checkpoint version 3, this program reads versions 1 to 3"));
}

TEST_F(OldFile, MissingTensorsAreFound) {
  fs::resize_file(file_, fs::file_size(file_) - seal_size);
  const hid_t file = H5Fopen(file_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  H5Ldelete(file, "second_moment/lm_head", H5P_DEFAULT);
  H5Fclose(file);
  seal_checkpoint(file_);
  EXPECT_THAT(load_error(file_),
              AllOf(HasSubstr(file_.string()), HasSubstr("second_moment holds 4 tensors")));
}

/// A last line that fits tells nothing of where the tensors lie.
class OldFileRefused : public OldFile, public testing::WithParamInterface<annulus::test::RefusedDataset> {};

TEST_P(OldFileRefused, NamesFileTensorAndRemedy) {
  fs::resize_file(file_, fs::file_size(file_) - seal_size);
  const hid_t file = H5Fopen(file_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  H5Ldelete(file, "first_moment/final_norm", H5P_DEFAULT);
  GetParam().write(file, "first_moment/final_norm", H5T_IEEE_F32LE, {8});
  // The number of tensors stays, whatever else was written beside.
  for (const char* more : {"first_moment/final_norm_itself", "first_moment/final_norm_type"})
    if (H5Lexists(file, more, H5P_DEFAULT) > 0) H5Lmove(file, more, file, "/more", H5P_DEFAULT, H5P_DEFAULT);
  H5Fclose(file);
  seal_checkpoint(file_);
  EXPECT_THAT(load_error(file_), AllOf(HasSubstr(file_.string()), HasSubstr("'/first_moment/final_norm'"),
                                       HasSubstr(GetParam().problem), HasSubstr(GetParam().remedy)));
}

INSTANTIATE_TEST_SUITE_P(All, OldFileRefused, testing::ValuesIn(annulus::test::refused_datasets()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace annulus::checkpoint
