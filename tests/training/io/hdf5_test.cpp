
#include <numeric>
#include <thread>

#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"
#include "training/io/atomic.hpp"
#include "training/io/hdf5_files/hdf5_writer.hpp"

namespace annulus::io {
namespace {

using testing::ElementsAre;

template <class T>
std::span<const T> view(const std::vector<T>& values) {
  return values;
}

template <class T>
class Hdf5Types : public testing::Test {};
using Types = testing::Types<std::uint8_t, std::uint16_t, std::uint32_t, std::uint64_t, std::int32_t,
                             std::int64_t, float, double>;
TYPED_TEST_SUITE(Hdf5Types, Types);

TYPED_TEST(Hdf5Types, RoundTrip) {
  using T = TypeParam;
  const test::TemporaryFolder folder;
  const std::vector<T> values{T(0), T(1), std::numeric_limits<T>::max(), std::numeric_limits<T>::lowest(),
                              T(7), T(42)};
  write_hdf5_atomically(folder.file("a.h5"), [&](FileWriter& file) {
    file.write("x", view(values), {2, 3});
  });
  const File file = File::open(folder.file("a.h5"));
  const Dataset x = file.dataset("x");
  EXPECT_EQ(x.type(), dtype_of<T>);
  EXPECT_THAT(x.extents(), ElementsAre(2, 3));
  EXPECT_EQ(x.name(), "/x");
  EXPECT_EQ(file.read<T>("x"), values);
}

using Hdf5 = annulus::test::FolderTest;

TEST_F(Hdf5, RefusesTypesThatFilesDoNotHold) {
  FileWriter file = FileWriter::create(folder_.file("a.h5"));
  EXPECT_THAT(error_text([&] { file.create_dataset("x", DType::bf16, {2}); }), mentions("bf16", "u16"));
}

TEST_F(Hdf5, HyperslabsOfThreeDimensions) {
  std::vector<std::int32_t> values(4 * 5 * 6);
  std::iota(values.begin(), values.end(), 0);
  FileWriter file = FileWriter::create(folder_.file("a.h5"));
  {
    DatasetWriter x = file.create_dataset("x", DType::i32, {4, 5, 6});
    for (std::uint64_t plane = 0; plane < 4; ++plane) {  // written plane by plane
      x.write({{plane, 0, 0}, {1, 5, 6}}, std::span<const std::int32_t>(values).subspan(plane * 30, 30));
    }
  }
  file.close();

  const Dataset x = File::open(folder_.file("a.h5")).dataset("x");
  const Hyperslab part{
      {1, 0, 1}, {1, 2, 2}, {1, 3, 3}, {2, 1, 2}};  // planes 1, 2; rows 0, 3; columns 1, 2, 4, 5
  ASSERT_EQ(part.elements(), 16u);
  std::vector<std::int32_t> got(16), want;
  x.read(part, std::span<std::int32_t>(got));
  for (const int i : {1, 2}) {
    for (const int j : {0, 3}) {
      for (const int k : {1, 2, 4, 5}) want.push_back((i * 5 + j) * 6 + k);
    }
  }
  EXPECT_EQ(got, want);
}

TEST_F(Hdf5, EmptyDatasetsAndScalars) {
  write_hdf5_atomically(folder_.file("a.h5"), [&](FileWriter& file) {
    file.write("empty", std::span<const float>(), {0, 3});
    file.write("scalar", view(std::vector<double>{2.5}), {});
  });
  const File file = File::open(folder_.file("a.h5"));
  EXPECT_THAT(file.dataset("empty").extents(), ElementsAre(0, 3));
  EXPECT_TRUE(file.read<float>("empty").empty());
  EXPECT_TRUE(file.dataset("scalar").extents().empty());
  EXPECT_THAT(file.read<double>("scalar"), ElementsAre(2.5));
}

TEST_F(Hdf5, GroupsAndPaths) {
  write_hdf5_atomically(folder_.file("a.h5"), [&](FileWriter& file) {
    file.write("model/layer1/weight", view(std::vector<float>{1, 2}), {2});
    file.write("model/layer0/weight", view(std::vector<float>{3}), {1});
  });
  const File file = File::open(folder_.file("a.h5"));
  EXPECT_THAT(file.group("model").names(), ElementsAre("layer0", "layer1"));
  EXPECT_EQ(file.group("model").group("layer1").name(), "/model/layer1");
  EXPECT_THAT(file.group("model/layer1").read<float>("weight"), ElementsAre(1, 2));
  EXPECT_TRUE(file.has("model/layer0/weight"));
  EXPECT_FALSE(file.has("model/layer2/weight"));
  EXPECT_FALSE(file.has("other"));
  EXPECT_TRUE(file.has("/model/layer0"));
}

TEST_F(Hdf5, Attributes) {
  write_hdf5_atomically(folder_.file("a.h5"), [&](FileWriter& file) {
    file.set_attribute("text", "Grüße");
    file.set_attribute("empty", "");
    file.set_attribute("int", -3);
    file.set_attribute("large", std::numeric_limits<std::int64_t>::max());
    file.set_attribute("real", 0.1);
    file.set_attribute("int", 5u);  // replaces
    DatasetWriter x = file.create_dataset("x", DType::f32, {1});
    x.write(view(std::vector<float>{1}));
    x.set_attribute("unit", "nats");
  });
  const File file = File::open(folder_.file("a.h5"));
  EXPECT_EQ(file.string_attribute("text"), "Grüße");
  EXPECT_EQ(file.string_attribute("empty"), "");
  EXPECT_EQ(file.integer_attribute("int"), 5);
  EXPECT_EQ(file.integer_attribute("large"), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(file.dataset("x").string_attribute("unit"), "nats");
  EXPECT_TRUE(file.has_attribute("text"));
  EXPECT_FALSE(file.has_attribute("unit"));
}

TEST_F(Hdf5, EqualContentsGiveEqualBytes) {
  const auto write = [&](const std::string& name) {
    write_hdf5_atomically(folder_.file(name), [&](FileWriter& file) {
      file.set_attribute("text", "some text");
      file.write("x", view(std::vector<float>(1000, 1.5f)), {10, 100});
    });
    return read_text(folder_.file(name));
  };
  const std::string first = write("a.h5");
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // HDF5's times count seconds
  EXPECT_EQ(write("b.h5"), first);
}

TEST_F(Hdf5, ObjectsMayOutliveTheirFile) {
  DatasetWriter x = [&] {
    FileWriter file = FileWriter::create(folder_.file("a.h5"));
    return file.create_dataset("x", DType::f32, {2});
  }();
  x.write(view(std::vector<float>{1, 2}));
}

TEST_F(Hdf5, NothingIsWrittenBehindClose) {
  FileWriter file = FileWriter::create(folder_.file("a.h5"));
  DatasetWriter x = file.create_dataset("x", DType::f32, {1});
  x.write(view(std::vector<float>{1}));
  file.close();
  EXPECT_THAT(error_text([&] { x.write(view(std::vector<float>{2})); }),
              mentions(folder_.file("a.h5"), "'/x'"));
  file.close();  // once more is nothing
  EXPECT_TRUE(File::open(folder_.file("a.h5")).has("x"));
}

TEST_F(Hdf5, ThreadsTakeTurns) {
  std::vector<std::thread> threads;
  std::vector<int> good(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::string name = folder_.file(std::to_string(t) + ".h5");
      for (int round = 0; round < 20; ++round) {
        const std::vector<std::int32_t> values(1000, t * 100 + round);
        write_hdf5_atomically(name + std::to_string(round),
                              [&](FileWriter& file) { file.write("x", view(values), {1000}); });
        good[t] += File::open(name + std::to_string(round)).read<std::int32_t>("x") == values;
        try {
          File::open(name + "missing");
        } catch (const Error&) {
          ++good[t];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(good, ElementsAre(40, 40, 40, 40));
}

}  // namespace
}  // namespace annulus::io
