#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <annulus/io/atomic.hpp>
#include <annulus/io/hdf5_writer.hpp>
#include <annulus/train/checkpoint.hpp>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>

#include "support/error_text.hpp"
#include "support/foreign_hdf5.hpp"
#include "support/full_disk.hpp"
#include "support/temporary_folder.hpp"
#include "train/arrays.hpp"
#include "train/checkpoint_seal.hpp"

namespace annulus::train {
namespace {

namespace fs = std::filesystem;
using annulus::test::error_text;
using annulus::test::TemporaryFolder;
using annulus::train::test::Arrays;
using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;

model::LlamaConfig shape(int layers = 1) {
  model::LlamaConfig config;
  config.vocabulary = 11;
  config.layers = layers;
  config.hidden = 8;
  config.heads = config.kv_heads = 1;
  config.head_dim = 16;
  config.ffn = 8;
  return config;
}

Arrays arrays_of(const model::ParameterMap& map, unsigned seed) {
  const Arrays arrays(map);
  const Buffers buffers = arrays;
  std::mt19937 random(seed);
  for (const FlatBuffer* buffer : {&buffers.parameters, &buffers.first_moment, &buffers.second_moment}) {
    std::vector<float> values(static_cast<std::size_t>(buffer->size()));
    for (float& value : values) {
      const std::uint32_t bits = random();  // any bit pattern: denormals, infinities and NaNs too
      std::memcpy(&value, &bits, sizeof bits);
    }
    buffer->write(0, values);
  }
  return arrays;
}

Progress progress_at(std::int64_t step) {
  return {step, {3, 17}, 4, 0xfedcba98u, "[train]\nlr = 1.0  # é\n"};
}

// The bytes of `count` elements, as they stand in a file.
std::string bytes_of(const FlatBuffer& buffer, std::int64_t begin, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  buffer.read(begin, values);
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}
bool same_bits(const FlatBuffer& a, const FlatBuffer& b) {
  return a.size() == b.size() && bytes_of(a, 0, a.size()) == bytes_of(b, 0, b.size());
}
bool same_bits(const Buffers& a, const Buffers& b) {
  return same_bits(a.parameters, b.parameters) && same_bits(a.first_moment, b.first_moment) &&
         same_bits(a.second_moment, b.second_moment);
}
bool same(const Progress& a, const Progress& b) {
  return a.step == b.step && a.stream == b.stream && a.global_batch_size == b.global_batch_size &&
         a.data_fingerprint == b.data_fingerprint && a.config == b.config;
}

constexpr std::size_t seal_size = 35;  // of the last line and the line end before it

void write(const fs::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override { save_checkpoint(file_, map_, progress_at(120), buffers_); }

  std::string load_error(const fs::path& file) const {
    return error_text([&] { Checkpoint(file).load(map_, arrays_of(map_, 9)); });
  }

  const TemporaryFolder folder_;
  const fs::path file_ = folder_.path() / "deep" / "er" / "a.h5";
  const model::ParameterMap map_{shape()};
  const Arrays arrays_ = arrays_of(map_, 1);
  const Buffers buffers_ = arrays_;
};

TEST_F(CheckpointTest, GivesBackEveryBit) {
  const Arrays read = arrays_of(map_, 2);
  const Checkpoint checkpoint(file_);
  checkpoint.load(map_, read);
  EXPECT_TRUE(same_bits(read, buffers_));
  EXPECT_TRUE(same(checkpoint.progress(), progress_at(120)));
  EXPECT_EQ(checkpoint.file(), file_);
}

TEST_F(CheckpointTest, PiecesOfFlatBuffersEndInsideThem) {
  std::vector<float> values(3);
  EXPECT_THAT(error_text([&] { buffers_.parameters.read(map_.size() - 2, values); }),
              HasSubstr(std::to_string(map_.size())));
  EXPECT_THAT(error_text([&] { buffers_.parameters.write(-1, values); }), HasSubstr("[-1, 2)"));
}

TEST_F(CheckpointTest, EqualStatesGiveEqualFiles) {
  const fs::path other = folder_.path() / "b.h5";
  save_checkpoint(other, map_, progress_at(120), buffers_);
  EXPECT_EQ(io::read_text(file_), io::read_text(other));
}

TEST_F(CheckpointTest, TruncationIsFoundWhereverItHappens) {
  const std::string bytes = io::read_text(file_);
  for (const double part : {0.0, 0.01, 0.3, 0.6, 0.9, 0.999}) {
    write(file_, bytes.substr(0, static_cast<std::size_t>(part * double(bytes.size()))));
    EXPECT_THAT(error_text([&] { Checkpoint{file_}; }), HasSubstr(file_.string())) << part;
  }
}

TEST_F(CheckpointTest, AFlippedByteIsFoundAnywhere) {
  const std::string bytes = io::read_text(file_);
  for (std::size_t at = 0; at < bytes.size(); at += at + 64 < bytes.size() ? 97 : 1) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    write(file_, damaged);
    ASSERT_THAT(error_text([&] { Checkpoint{file_}; }), HasSubstr(file_.string())) << "byte " << at;
  }
  write(file_, bytes);
  EXPECT_NO_THROW(Checkpoint{file_});
}

TEST_F(CheckpointTest, DamageUnderAFreshSealNamesTheDataset) {
  for (const char* part : {"parameters", "first_moment", "second_moment"}) {
    save_checkpoint(file_, map_, progress_at(120), buffers_);
    std::string bytes = io::read_text(file_);
    const auto& buffer = part == std::string("parameters")     ? buffers_.parameters
                         : part == std::string("first_moment") ? buffers_.first_moment
                                                               : buffers_.second_moment;
    // The values of lm_head, found by their first eight numbers.
    const std::string needle = bytes_of(buffer, map_.lm_head(), 8);
    const auto at = bytes.find(needle);
    ASSERT_NE(at, std::string::npos);
    bytes[at + 5] = static_cast<char>(bytes[at + 5] ^ 1);
    write(file_, bytes.substr(0, bytes.size() - seal_size));
    seal_checkpoint(file_);
    EXPECT_THAT(load_error(file_), AllOf(HasSubstr(file_.string()), HasSubstr(part + std::string("/lm_head")),
                                         HasSubstr("CRC-32"), HasSubstr("--resume")));
  }
}

TEST_F(CheckpointTest, ForeignFilesAndVersionsAreRefused) {
  const fs::path text = folder_.write("text.h5", "no HDF5 at all");
  EXPECT_THAT(load_error(text), HasSubstr(text.string()));
  const fs::path foreign = folder_.path() / "foreign.h5";
  io::write_hdf5_atomically(foreign, [](io::FileWriter& file) { file.set_attribute("format", "other"); });
  EXPECT_THAT(load_error(foreign), AllOf(HasSubstr(foreign.string()), HasSubstr("no checkpoint of Annulus")));
  seal_checkpoint(foreign);
  EXPECT_THAT(load_error(foreign), HasSubstr("its attribute 'format'"));
  io::write_hdf5_atomically(foreign, [](io::FileWriter&) {});
  seal_checkpoint(foreign);
  EXPECT_THAT(load_error(foreign), HasSubstr("no checkpoint of Annulus"));
  io::write_hdf5_atomically(foreign, [](io::FileWriter& file) {
    file.set_attribute("format", checkpoint_format);
    file.set_attribute("version", 3);
  });
  seal_checkpoint(foreign);
  EXPECT_THAT(load_error(foreign), HasSubstr("checkpoint version 3, this program reads versions 1 to 2"));
  EXPECT_THAT(load_error(folder_.path() / "none.h5"), HasSubstr("none.h5"));
}

TEST_F(CheckpointTest, AnotherModelIsNamed) {
  const model::ParameterMap deeper(shape(2));
  const Checkpoint checkpoint(file_);
  EXPECT_THAT(error_text([&] { checkpoint.load(deeper, arrays_of(deeper, 2)); }),
              AllOf(HasSubstr("another model"), HasSubstr(file_.string())));
  model::LlamaConfig wider = shape();
  wider.vocabulary = 12;
  const model::ParameterMap wide(wider);
  EXPECT_THAT(error_text([&] { checkpoint.load(wide, arrays_of(wide, 2)); }),
              AllOf(HasSubstr("/parameters/embedding"), HasSubstr("(11, 8)"), HasSubstr("(12, 8)")));
}

TEST_F(CheckpointTest, MissingAndExtraDatasetsAreFound) {
  // A tensor less in second_moment, and without this group.
  for (const bool group : {false, true}) {
    const fs::path broken = folder_.path() / "broken.h5";
    const io::File from = io::File::open(file_);
    io::write_hdf5_atomically(broken, [&](io::FileWriter& to) {
      for (const char* name : {"format", "config"}) to.set_attribute(name, from.string_attribute(name));
      for (const char* name :
           {"version", "step", "epoch", "sequences_read", "update_sequences", "data_fingerprint"})
        to.set_attribute(name, from.integer_attribute(name));
      for (const char* part : {"parameters", "first_moment", "second_moment"}) {
        if (group && part == std::string("second_moment")) continue;
        io::GroupWriter out = to.create_group(part);
        const io::Group in = from.group(part);
        for (const std::string& name : in.names()) {
          if (part == std::string("second_moment") && name == "lm_head") continue;
          const io::Dataset source = in.dataset(name);
          io::DatasetWriter copy = out.create_dataset(name, source.type(), source.extents());
          std::vector<float> values(source.elements());
          source.read(std::span<float>(values));
          copy.write(std::span<const float>(values));
          copy.set_attribute("crc32", source.integer_attribute("crc32"));
        }
      }
    });
    seal_checkpoint(broken);
    EXPECT_THAT(load_error(broken), AllOf(HasSubstr(broken.string()), HasSubstr("second_moment")));
  }
}

/// A last line that fits tells nothing of where the tensors lie.
class CheckpointRefused : public CheckpointTest,
                          public testing::WithParamInterface<annulus::test::RefusedDataset> {};

TEST_P(CheckpointRefused, NamesFileTensorAndRemedy) {
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

INSTANTIATE_TEST_SUITE_P(All, CheckpointRefused, testing::ValuesIn(annulus::test::refused_datasets()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_F(CheckpointTest, AFailedSaveLeavesTheOldFileAndNothingElse) {
  const std::string before = io::read_text(file_);
  std::string message;
  {
    const annulus::test::FileSizeLimit limit(4096);
    message = error_text([&] { save_checkpoint(file_, map_, progress_at(130), arrays_of(map_, 3)); });
  }
  EXPECT_THAT(message, HasSubstr(file_.string()));
  EXPECT_EQ(io::read_text(file_), before);
  EXPECT_THAT(names_in(file_.parent_path()), ElementsAre("a.h5"));

  const fs::path inside_file = file_ / "b.h5";  // a file stands where the folder would be
  EXPECT_THAT(error_text([&] { save_checkpoint(inside_file, map_, progress_at(1), buffers_); }),
              HasSubstr(file_.string()));
}

TEST_F(CheckpointTest, AFullDiskIsSurvived) {
  annulus::test::SmallFileSystem disk(64 * 1024);
  if (!disk.mounted()) GTEST_SKIP() << "mounting a small file system needs root";
  const CheckpointFolder folder(disk.path() / "checkpoints", 2);
  const std::string filler(60 * 1024, 'x');
  io::write_text_atomically(disk.path() / "filler", filler);
  EXPECT_THAT(error_text([&] { folder.save(map_, progress_at(1), buffers_); }),
              AllOf(HasSubstr("step-00000001.h5"), AnyOf(HasSubstr("space"), HasSubstr("full"))));
  EXPECT_TRUE(names_in(disk.path() / "checkpoints").empty());
  fs::remove(disk.path() / "filler");
  folder.save(map_, progress_at(2), buffers_);
  EXPECT_THAT(folder.steps(), ElementsAre(2));
}

class CheckpointFolderTest : public CheckpointTest {
 protected:
  void save(std::int64_t step) const { folder_of_run_.save(map_, progress_at(step), buffers_); }
  void damage(std::int64_t step) const {
    const std::string bytes = io::read_text(folder_of_run_.file_of(step));
    io::write_text_atomically(folder_of_run_.file_of(step), bytes.substr(0, bytes.size() / 2));
  }
  fs::path newest() const { return folder_of_run_.newest_good().value().file(); }

  const fs::path path_ = folder_.path() / "checkpoints";
  const CheckpointFolder folder_of_run_{path_, 2};
};

TEST_F(CheckpointFolderTest, KeepsTheNewest) {
  EXPECT_TRUE(folder_of_run_.steps().empty());
  EXPECT_FALSE(folder_of_run_.newest_good());
  for (const std::int64_t step : {5, 9, 10, 100, 123456789}) save(step);
  EXPECT_THAT(folder_of_run_.steps(), ElementsAre(100, 123456789));
  EXPECT_EQ(newest(), folder_of_run_.file_of(123456789));
  EXPECT_THAT(names_in(path_), ElementsAre("step-00000100.h5", "step-123456789.h5"));
}

TEST_F(CheckpointFolderTest, ADamagedNewestIsPassedOverAndDoesNotPushOutGoodOnes) {
  for (const std::int64_t step : {3, 6}) save(step);
  damage(6);
  testing::internal::CaptureStdout();
  EXPECT_EQ(newest(), folder_of_run_.file_of(3));
  EXPECT_THAT(testing::internal::GetCapturedStdout(),
              AllOf(HasSubstr("warn"), HasSubstr(folder_of_run_.file_of(6).string())));
  save(4);  // the damaged one counts for nothing
  EXPECT_THAT(folder_of_run_.steps(), ElementsAre(3, 4, 6));
  save(5);
  EXPECT_THAT(folder_of_run_.steps(), ElementsAre(4, 5, 6));
  save(6);  // and is replaced in the end
  EXPECT_EQ(newest(), folder_of_run_.file_of(6));
  EXPECT_THAT(folder_of_run_.steps(), ElementsAre(5, 6));
}

TEST_F(CheckpointFolderTest, WhenAllAreDamagedTheErrorSaysWhatToDo) {
  for (const std::int64_t step : {3, 6}) save(step);
  damage(3);
  damage(6);
  EXPECT_THAT(error_text([&] { folder_of_run_.newest_good(); }),
              AllOf(HasSubstr("none of the 2 checkpoints"), HasSubstr(path_.string()),
                    HasSubstr("another run.folder")));
}

TEST_F(CheckpointFolderTest, AFailedSaveRemovesNothing) {
  for (const std::int64_t step : {3, 6}) save(step);
  {
    const annulus::test::FileSizeLimit limit(4096);
    EXPECT_THROW(save(9), Error);
  }
  EXPECT_THAT(names_in(path_), ElementsAre("step-00000003.h5", "step-00000006.h5"));
}

TEST_F(CheckpointFolderTest, OnlyLeftoversAreRemoved) {
  save(3);
  for (const char* name : {"step-00000006.h5.tmp-4711", "mine.h5", "step-x.h5", "notes.tmp-1"})
    io::write_text_atomically(path_ / name, "text");
  folder_of_run_.remove_leftovers();
  EXPECT_THAT(names_in(path_), ElementsAre("mine.h5", "notes.tmp-1", "step-00000003.h5", "step-x.h5"));
  EXPECT_THAT(folder_of_run_.steps(), ElementsAre(3));
}

/// The example of docs/formats/checkpoint.md, run by Python.
TEST_F(CheckpointTest, PythonReadsAndChecksIt) {
  // Debian's h5py belongs to Debian's Python, which may not come first in PATH.
  std::string python;
  for (const char* candidate : {"python3", "/usr/bin/python3"})
    if (python.empty() &&
        std::system((std::string(candidate) + " -c 'import h5py, numpy' 2>/dev/null").c_str()) == 0)
      python = candidate;
  if (python.empty()) GTEST_SKIP() << "no Python with h5py here";
  const std::string text = io::read_text(ANNULUS_CHECKPOINT_FORMAT);
  const auto begin = text.find("```python\n") + 10;
  const std::string script = text.substr(begin, text.find("```", begin) - begin);
  const std::string name = folder_.write("check.py", script);
  EXPECT_EQ(std::system((python + " '" + name + "' '" + file_.string() + "'").c_str()), 0);
  std::string bytes = io::read_text(file_);
  const std::string needle = bytes_of(buffers_.parameters, 0, 8);
  bytes[bytes.find(needle)] ^= 1;
  write(file_, bytes);
  EXPECT_NE(std::system((python + " '" + name + "' '" + file_.string() + "' 2>/dev/null").c_str()), 0);
}

}  // namespace
}  // namespace annulus::train
