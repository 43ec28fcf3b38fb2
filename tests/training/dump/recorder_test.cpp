// Tensors of ranks in any layout, of several groups, in one file in global token order.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include <annulus/attention/comm/communicator.hpp>
#include <annulus/attention/comm/loopback.hpp>
#include <annulus/attention/sequence/layout.hpp>

#include "support/error_text.hpp"
#include "support/exec.hpp"
#include "support/temporary_folder.hpp"
#include "training/dump/recorder.hpp"

namespace annulus::test {
namespace {

using dump::Recorder;
using io::Extents;
using testing::ElementsAre;
using testing::HasSubstr;

/// A number that tells its place; bf16 holds it.
float value_at(std::int64_t sequence, std::int64_t head, std::int64_t token, std::int64_t channel) {
  return static_cast<float>((sequence * 7 + head * 5 + token * 3 + channel) % 251);
}

/// This rank's rows of a tensor of some sequences.
template <class T>
Array4<T, TestExec> make(const dump::SequenceRange& sequences, std::int64_t heads, const PositionMap& rows,
                         std::int64_t channels) {
  Array4<T, TestExec> tensor("tensor", sequences.count, heads, rows.count, channels);
  const auto host = Kokkos::create_mirror_view(tensor);
  for (std::int64_t b = 0; b < sequences.count; ++b)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t r = 0; r < rows.count; ++r)
        for (std::int64_t c = 0; c < channels; ++c)
          host(b, h, r, c) = T(value_at(sequences.first + b * sequences.stride, h, rows(r), c));
  Kokkos::deep_copy(tensor, host);
  return tensor;
}

void expect_tensor(const io::File& file, const std::string& name, const Extents& extents, bool has_heads) {
  const io::Dataset dataset = file.dataset(name);
  ASSERT_EQ(dataset.extents(), extents) << name;
  const auto values = file.read<float>(name);
  std::size_t i = 0, wrong = 0;
  const auto heads = has_heads ? extents[1] : 1;
  const auto tokens = extents[has_heads ? 2 : 1];
  const auto channels = extents.size() == (has_heads ? 4u : 3u) ? extents.back() : 1;
  for (std::uint64_t s = 0; s < extents[0]; ++s)
    for (std::uint64_t h = 0; h < heads; ++h)
      for (std::uint64_t t = 0; t < tokens; ++t)
        for (std::uint64_t c = 0; c < channels; ++c, ++i) {
          const auto place = [](std::uint64_t n) { return static_cast<std::int64_t>(n); };
          wrong += values[i] != value_at(place(s), place(h), place(t), place(c));
        }
  EXPECT_EQ(wrong, 0u) << name;
}

/// All shapes and types on `groups` groups of `context` ranks, in two passes of two sequences. The groups
/// take sequences in turns.
void record_everything(const std::string& path, comm::Communicator& world, int context, const Layout& layout,
                       std::int64_t tokens) {
  const TestExec exec = rank_instance();
  const int groups = world.size() / context, group = world.rank() / context;
  const PositionMap rows = layout.shard(tokens, context, world.rank() % context);
  dump::record(
      path, world, {4 * groups, tokens}, [](io::FileWriter& file) { file.set_attribute("step", 3); },
      [&](Recorder& recorder) {
        for (std::int64_t pass = 0; pass < 2; ++pass) {
          const dump::SequenceRange sequences{
              .first = 2 * pass * groups + group, .count = 2, .stride = groups};
          recorder.set_rows(sequences, rows);
          recorder.rows(exec, "four", make<float>(sequences, 3, rows, 5));
          recorder.rows(exec, "half", make<bfloat16>(sequences, 3, rows, 5));
          const auto lse = make<float>(sequences, 3, rows, 1);
          recorder.rows(exec, "three", Array3<float, TestExec>(lse.data(), 2, 3, rows.count));
          const auto flat = make<float>(sequences, 1, rows, 5);
          recorder.rows(exec, "two", Array2<float, TestExec>(flat.data(), 2 * rows.count, 5));
          const auto loss = make<float>(sequences, 1, rows, 1);
          recorder.rows(exec, "one", Array1<float, TestExec>(loss.data(), 2 * rows.count));
        }
        const Array1<float, TestExec> gain("gain", 6);
        Kokkos::deep_copy(gain, 2.5f);
        recorder.whole(exec, "weights/gain", gain);
        recorder.number("loss", 1.25);
      });
}

using Recording = annulus::test::FolderTest;

TEST_F(Recording, ManyRanksInAnyLayoutWriteWhatOneWrites) {
  const std::int64_t tokens = 37;
  for (const char* layout : {"contiguous", "zigzag", "striped", "block-striped:4"}) {
    for (const auto& [ranks, context] : {std::pair{1, 1}, {3, 3}, {4, 2}}) {
      SCOPED_TRACE(testing::Message() << layout << " on " << ranks << " ranks in groups of " << context);
      const std::string path = folder_.file("dump.h5");
      comm::run_loopback(Topology::uniform(ranks, ranks), [&](comm::Communicator& world) {
        record_everything(path, world, context, Layout::parse(layout), tokens);
      });
      const io::File file = io::File::open(path);
      const auto sequences = static_cast<std::uint64_t>(4 * ranks / context);
      expect_tensor(file, "four", {sequences, 3, 37, 5}, true);
      expect_tensor(file, "half", {sequences, 3, 37, 5}, true);
      expect_tensor(file, "three", {sequences, 3, 37}, true);
      expect_tensor(file, "two", {sequences, 37, 5}, false);
      expect_tensor(file, "one", {sequences, 37}, false);
      EXPECT_THAT(file.read<float>("weights/gain"), ElementsAre(2.5f, 2.5f, 2.5f, 2.5f, 2.5f, 2.5f));
      EXPECT_THAT(file.read<double>("loss"), ElementsAre(1.25));
      EXPECT_EQ(file.string_attribute("format"), "annulus-tensors");
      EXPECT_EQ(file.integer_attribute("step"), 3);
      EXPECT_EQ(file.dataset("half").string_attribute("dtype"), "bf16");
      EXPECT_EQ(file.dataset("four").string_attribute("dimensions"), "sequence head token channel");
      EXPECT_EQ(file.dataset("three").string_attribute("dimensions"), "sequence head token");
      std::vector<std::int64_t> orders;
      for (const char* name : {"four", "half", "three", "two", "one", "weights/gain", "loss"})
        orders.push_back(file.dataset(name).integer_attribute("order"));
      EXPECT_THAT(orders, ElementsAre(0, 1, 2, 3, 4, 5, 6));
    }
  }
}

TEST_F(Recording, TensorsBeyondAPieceGoInParts) {
  const std::int64_t tokens = 70001, heads = 2, channels = 64;  // 17 MiB a head
  comm::run_loopback(Topology::uniform(2, 2), [&](comm::Communicator& world) {
    const PositionMap rows = Layout::parse("zigzag").shard(tokens, 2, world.rank());
    dump::record(
        folder_.file("dump.h5"), world, {1, tokens}, [](io::FileWriter&) {},
        [&](Recorder& recorder) {
          recorder.set_rows({}, rows);
          recorder.rows(rank_instance(), "large", make<float>({}, heads, rows, channels));
        });
  });
  expect_tensor(io::File::open(folder_.file("dump.h5")), "large", {1, 2, 70001, 64}, true);
}

TEST_F(Recording, WhatFailsLeavesWhatItHadRecorded) {
  const std::string path = folder_.file("dump.h5");
  const auto alone = comm::make_null();
  const TestExec exec;
  const auto record = [&](const std::function<void(Recorder&)>& body) {
    return error_text([&] {
      dump::record(
          path, *alone, {1, 8}, [](io::FileWriter&) {}, body);
    });
  };
  const Array2<float, TestExec> tensor("tensor", 8, 3), smaller("smaller", 5, 3);
  EXPECT_THAT(record([&](Recorder& r) { r.rows(exec, "x", tensor); }), HasSubstr("call set_rows first"));
  EXPECT_THAT(record([&](Recorder& r) { r.set_rows({}, Layout().shard(8, 2, 0)); }),
              HasSubstr("hold 4 of its 8 rows"));
  EXPECT_THAT(record([&](Recorder& r) {
                r.set_rows({}, Layout().shard(8, 1, 0));
                r.rows(exec, "x", smaller);
              }),
              HasSubstr("'x' has 5 rows, this rank computes 8"));
  EXPECT_THAT(record([&](Recorder& r) {
                r.set_rows({.count = 2}, Layout().shard(8, 1, 0));
                r.rows(exec, "x", Array3<float, TestExec>("x", 1, 3, 8));
              }),
              HasSubstr("'x' has 1 sequences, this rank computes 2"));
  EXPECT_THAT(record([&](Recorder& r) {
                r.number("x", 1);
                r.whole(exec, "x", Array1<float, TestExec>("x", 2));
              }),
              HasSubstr("'x' was recorded before"));
  EXPECT_EQ(record([](Recorder& r) { r.number("x", 1); }), "no error");
  EXPECT_EQ(io::File::open(path).integer_attribute("complete"), 1);
  EXPECT_EQ(record([](Recorder& r) {
              r.number("y", 2);
              fail("on the way");
            }),
            "on the way");
  const io::File file = io::File::open(path);
  EXPECT_EQ(file.integer_attribute("complete"), 0);
  EXPECT_THAT(file.names(), ElementsAre("y"));
}

TEST_F(Recording, AFileThatCannotBeWrittenIsAnError) {
  const auto alone = comm::make_null();
  EXPECT_THAT(error_text([&] {
                dump::record(
                    folder_.file("none/dump.h5"), *alone, {1, 8}, [](io::FileWriter&) {}, [](Recorder&) {});
              }),
              HasSubstr("none/dump.h5"));
  EXPECT_THAT(error_text([&] {
                dump::record(
                    folder_.file("dump.h5"), *alone, {1, 8}, [](io::FileWriter&) { fail("before"); },
                    [](Recorder&) {});
              }),
              HasSubstr("before"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

}  // namespace
}  // namespace annulus::test
