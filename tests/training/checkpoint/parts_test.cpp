// What any number of ranks has written, any other number reads: every bit, and by the ranges it needs.
#include <gtest/gtest.h>

#include <mutex>

#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"
#include "training/checkpoint/states.hpp"
#include "training/io/atomic.hpp"
#include "training/io/safetensors/safetensors.hpp"

namespace annulus::checkpoint {
namespace {

namespace fs = std::filesystem;
using annulus::test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;

class Parts : public testing::Test {
 protected:
  const TemporaryFolder folder_;
  const fs::path path_ = folder_.path() / "step-00000120";
  const test::State state_{1};
};

TEST_F(Parts, GiveBackEveryBitToAnyNumberOfReaders) {
  for (const int writers : {1, 2, 3, 7}) {
    for (const std::int64_t block : {std::int64_t{5}, std::int64_t{64}, default_block}) {
      fs::remove_all(path_);
      test::write_checkpoint(path_, state_, 120, writers, block);
      const Checkpoint checkpoint(path_);
      EXPECT_EQ(checkpoint.progress(), test::progress_at(120));
      EXPECT_EQ(checkpoint.tensors(), state_.tensors);
      EXPECT_EQ(checkpoint.path(), path_);
      EXPECT_NO_THROW(checkpoint.verify());
      for (const int readers : {1, 2, 5})
        for (const Buffer buffer : buffers) {
          std::vector<float> all;
          for (const Slice& slice : test::pieces_of(state_.size(), readers)) {
            const auto values = test::read(checkpoint, state_, buffer, slice.begin, slice.end);
            all.insert(all.end(), values.begin(), values.end());
          }
          EXPECT_EQ(test::bytes_of(all), test::bytes_of(state_.of(buffer))) << writers << " " << readers;
        }
    }
  }
}

// Interleaved pieces, as the units of a model are shared out, packed in the memory of their rank.
TEST_F(Parts, OfSeveralSlicesLieWhereTheirRankSays) {
  fs::create_directories(path_);
  const std::vector<std::vector<Slice>> shares{{{0, 100, 0}, {230, 260, 100}},
                                               {{100, 230, 7}, {260, 320, 137}}};
  std::vector<std::int64_t> passed;
  for (int part = 0; part < 2; ++part) {
    const auto& slices = shares[std::size_t(part)];
    std::vector<float> copy;
    write_part(
        {.folder = path_, .part = part, .parts = 2, .slices = slices}, state_.tensors,
        [&](Buffer buffer, std::int64_t offset, std::int64_t count) {
          const Slice& of = offset >= slices[1].offset ? slices[1] : slices[0];
          const auto first = state_.of(buffer).begin() + of.begin + offset - of.offset;
          copy.assign(first, first + count);
          return std::span<const float>(copy);
        },
        [&](std::int64_t offset) { passed.push_back(offset); });
  }
  // The embedding, the norm, the beginning of the query; the end of the final norm, the beginning of the
  // head.
  EXPECT_THAT(passed, ElementsAre(88, 96, 100, 102, 130, 131, 137, 197));
  EXPECT_TRUE(all_parts_written(path_, 2));
  EXPECT_FALSE(all_parts_written(path_, 3));
  write_manifest(path_, test::progress_at(1), state_.tensors, 2);
  EXPECT_TRUE(test::holds(Checkpoint(path_), state_));
  EXPECT_THAT(test::names_in(path_), ElementsAre("manifest.json", "part-00000-of-00002.safetensors",
                                                 "part-00001-of-00002.safetensors"));
}

TEST_F(Parts, AreReadByTheRangesThatAreNeeded) {
  test::write_checkpoint(path_, state_, 120, 3, 16);
  // A rank that needs the first part alone does not miss the last one.
  fs::remove(path_ / part_file(2, 3));
  const Checkpoint checkpoint(path_, Checkpoint::Check::manifest);
  EXPECT_EQ(test::read(checkpoint, state_, Buffer::parameters, 0, 90).size(), 90u);
  EXPECT_THAT(error_text([&] { test::read(checkpoint, state_, Buffer::parameters, 0, state_.size()); }),
              mentions(part_file(2, 3), "--resume"));
  EXPECT_THAT(error_text([&] { Checkpoint{path_}; }), HasSubstr(part_file(2, 3)));
  EXPECT_THAT(error_text([&] { checkpoint.read(Buffer::parameters, "lm_head", 80, 9, {}); }),
              mentions("lm_head", "88"));
  EXPECT_THAT(error_text([&] { checkpoint.read(Buffer::parameters, "head", 0, 1, {}); }), HasSubstr("head"));
}

TEST_F(Parts, AreSafetensorsFilesWithTheShapesOfTheModel) {
  test::write_checkpoint(path_, state_, 120, 1);
  const io::SafetensorsFile file(path_ / part_file(0, 1));
  EXPECT_EQ(file.tensors().size(), 3 * state_.tensors.size());
  EXPECT_EQ(file.tensor("second_moment/lm_head").extents, (io::Extents{11, 8}));
  std::vector<float> values(8);
  file.read(file.tensor("first_moment/layers.0.norm"), std::span<float>(values));
  const auto expected = state_.of(Buffer::first_moment).begin() + 88;
  EXPECT_EQ(test::bytes_of(values), test::bytes_of(std::vector<float>(expected, expected + 8)));
}

// However threads share the blocks, nothing is said to have passed that another thread has not read yet.
TEST_F(Parts, OfSeveralThreadsAreThoseOfOne) {
  for (const int threads : {1, 2, 5}) {
    const fs::path folder = folder_.path() / std::to_string(threads);
    fs::create_directories(folder);
    std::mutex mutex;
    std::int64_t reached = 0;
    write_part(
        {.folder = folder, .part = 0, .parts = 1, .slices = {{0, state_.size(), 0}}, .threads = threads},
        state_.tensors,
        [&](Buffer buffer, std::int64_t offset, std::int64_t count) {
          const std::lock_guard lock(mutex);
          EXPECT_GE(offset, reached);
          return std::span<const float>(state_.of(buffer))
              .subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(count));
        },
        [&](std::int64_t offset) {
          const std::lock_guard lock(mutex);
          EXPECT_GT(offset, reached);
          reached = offset;
        },
        16);
    EXPECT_EQ(reached, state_.size());
    write_manifest(folder, test::progress_at(1), state_.tensors, 1, 16);
    EXPECT_TRUE(test::holds(Checkpoint(folder), state_));
    EXPECT_EQ(io::read_text(folder / part_file(0, 1)), io::read_text(folder_.path() / "1" / part_file(0, 1)));
  }
}

// One thread's error is the part's, and the others stop.
TEST_F(Parts, ThatAThreadCannotWriteAreAnError) {
  fs::create_directories(path_);
  const auto broken = [&](Buffer, std::int64_t offset, std::int64_t count) -> std::span<const float> {
    require(offset < 100, "no more from {}", offset);
    return std::span<const float>(state_.of(Buffer::parameters))
        .subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(count));
  };
  const std::string error = error_text([&] {
    write_part({.folder = path_, .part = 0, .parts = 1, .slices = {{0, state_.size(), 0}}, .threads = 3},
               state_.tensors, broken, {}, 16);
  });
  EXPECT_THAT(error, HasSubstr("no more from"));
  EXPECT_FALSE(all_parts_written(path_, 1));
}

TEST_F(Parts, EqualStatesGiveEqualFiles) {
  for (const char* name : {"a", "b"}) test::write_checkpoint(folder_.path() / name, state_, 120, 2);
  for (const std::string& name : test::names_in(folder_.path() / "a"))
    EXPECT_EQ(io::read_text(folder_.path() / "a" / name), io::read_text(folder_.path() / "b" / name));
}

TEST_F(Parts, OfAnotherModelAreNamed) {
  test::write_checkpoint(path_, state_, 120, 2);
  const Checkpoint checkpoint(path_);
  std::vector<StoredTensor> tensors = state_.tensors;
  std::reverse(tensors.begin(), tensors.end());
  EXPECT_NO_THROW(checkpoint.require_tensors(tensors));
  tensors.back().extents = {12, 8};
  EXPECT_THAT(
      error_text([&] { checkpoint.require_tensors(tensors); }),
      mentions(path_.string(), "embedding has shape (11, 8), the model's is (12, 8)", "another model"));
  tensors.back() = {"other", {8}};
  EXPECT_THAT(error_text([&] { checkpoint.require_tensors(tensors); }), HasSubstr("no tensor other"));
  tensors.pop_back();
  EXPECT_THAT(error_text([&] { checkpoint.require_tensors(tensors); }), HasSubstr("holds 5 tensors"));
}

/// The example of docs/formats/checkpoint.md, run by Python.
TEST_F(Parts, PythonReadsAndChecksThem) {
  std::string python;
  for (const char* candidate : {"python3", "/usr/bin/python3"})
    if (python.empty() &&
        std::system((std::string(candidate) + " -c 'import numpy' 2>/dev/null").c_str()) == 0)
      python = candidate;
  if (python.empty()) GTEST_SKIP() << "no Python with numpy here";
  const std::string text = io::read_text(ANNULUS_CHECKPOINT_FORMAT);
  const std::string open = "```python read_checkpoint.py\n";
  ASSERT_THAT(text, HasSubstr(open));
  const auto begin = text.find(open) + open.size();
  const std::string script = folder_.write("check.py", text.substr(begin, text.find("```", begin) - begin));
  test::write_checkpoint(path_, state_, 120, 3, 16);
  const std::string command = python + " '" + script + "' '" + path_.string() + "'";
  const std::string output = folder_.file("output");
  ASSERT_EQ(std::system((command + " > '" + output + "'").c_str()), 0);
  EXPECT_EQ(io::read_text(output), "120 optimizer steps; 320 parameters\n");
  const fs::path part = path_ / part_file(1, 3);
  std::string bytes = io::read_text(part);
  bytes[bytes.size() - 3] ^= 1;
  io::write_text_atomically(part, bytes);
  EXPECT_NE(std::system((command + " > /dev/null 2>&1").c_str()), 0);
}

}  // namespace
}  // namespace annulus::checkpoint
