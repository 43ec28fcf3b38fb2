// Every way in which HDF5 lays out groups, attributes and chunks that Annulus reads, written by the C
// interface of HDF5 in its oldest and its newest format.

#include <gmock/gmock.h>

#include <numeric>

#include "training/io/hdf5_files/hdf5.hpp"

#include "support/foreign_hdf5.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::io {
namespace {

struct ChunkCase {
  const char* name;
  std::vector<hsize_t> extents, limits, chunk;
  bool deflate = false, shuffle = false, fletcher32 = false;
  bool early = false;  // chunks are allocated at once
};

constexpr hsize_t endless = H5S_UNLIMITED;

class Hdf5Chunks : public testing::TestWithParam<std::tuple<ChunkCase, bool>> {
 protected:
  Hdf5Chunks() {
    const auto& [c, newest] = GetParam();
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS), properties = H5Pcreate(H5P_DATASET_CREATE);
    if (newest) H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
    const int rank = static_cast<int>(c.extents.size());
    H5Pset_chunk(properties, rank, c.chunk.data());
    if (c.shuffle) H5Pset_shuffle(properties);
    if (c.deflate) H5Pset_deflate(properties, 6);
    if (c.fletcher32) H5Pset_fletcher32(properties);
    if (c.early) H5Pset_alloc_time(properties, H5D_ALLOC_TIME_EARLY);
    const hsize_t elements =
        std::accumulate(c.extents.begin(), c.extents.end(), hsize_t{1}, std::multiplies<>());
    values_.resize(elements);
    for (std::size_t i = 0; i < values_.size(); ++i) values_[i] = static_cast<std::uint32_t>(i * 2654435761u);
    const hid_t file = H5Fcreate(path_.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
    const hid_t space =
        H5Screate_simple(rank, c.extents.data(), c.limits.empty() ? nullptr : c.limits.data());
    const hid_t id = H5Dcreate2(file, "x", H5T_STD_U32LE, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    H5Dwrite(id, H5T_NATIVE_UINT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, values_.data());
    for (const hid_t object : {id}) H5Dclose(object);
    H5Sclose(space);
    H5Fclose(file);
    H5Pclose(properties);
    H5Pclose(access);
  }

  test::TemporaryFolder folder_;
  std::string path_ = folder_.file("f.h5");
  std::vector<std::uint32_t> values_;
};

TEST_P(Hdf5Chunks, AreReadWholeAndInParts) {
  const File file = File::open(path_);
  EXPECT_EQ(file.read<std::uint32_t>("x"), values_);
  // Every second element of the second half of the first dimension, at most 3 of the others.
  const Dataset x = file.dataset("x");
  Hyperslab part;
  for (const std::uint64_t extent : x.extents()) {
    const bool first = part.start.empty();
    part.start.push_back(first ? extent / 2 : extent / 3);
    part.count.push_back(first ? (extent - extent / 2 + 1) / 2
                               : std::min<std::uint64_t>(3, extent - extent / 3));
    part.stride.push_back(first ? 2 : 1);
  }
  std::vector<std::uint32_t> got(part.elements()), want;
  x.read(part, std::span(got));
  const std::uint64_t columns = x.extents().size() > 1 ? x.extents()[1] : 1;
  for (std::uint64_t i = 0; i < part.count[0]; ++i) {
    const std::uint64_t row = part.start[0] + 2 * i;
    if (x.extents().size() == 1) {
      want.push_back(values_[row]);
    } else {
      for (std::uint64_t j = 0; j < part.count[1]; ++j)
        want.push_back(values_[row * columns + part.start[1] + j]);
    }
  }
  EXPECT_EQ(got, want);
}

INSTANTIATE_TEST_SUITE_P(
    All, Hdf5Chunks,
    testing::Combine(testing::Values(ChunkCase{"Few", {100}, {}, {7}}, ChunkCase{"One", {100}, {}, {100}},
                                     ChunkCase{"OnePacked", {100}, {}, {100}, true},
                                     ChunkCase{"Early", {100, 9}, {}, {7, 4}, false, false, false, true},
                                     ChunkCase{"Packed", {1000}, {}, {33}, true, true, true},
                                     ChunkCase{"Shuffled", {1000}, {}, {33}, false, true},
                                     ChunkCase{"Checked", {1000}, {}, {33}, false, false, true},
                                     ChunkCase{"Matrix", {50, 60}, {}, {7, 11}, true},
                                     ChunkCase{"Many", {9000}, {}, {1}},
                                     ChunkCase{"ManyPacked", {3000}, {}, {1}, true},
                                     ChunkCase{"Limited", {100}, {5000}, {3}},
                                     ChunkCase{"Growing", {100}, {endless}, {7}},
                                     ChunkCase{"GrowingPacked", {1000}, {endless}, {7}, true, true},
                                     ChunkCase{"GrowingFar", {40000}, {endless}, {1}},
                                     ChunkCase{"GrowingRows", {70, 20}, {endless, 20}, {3, 7}, true},
                                     ChunkCase{"GrowingBoth", {70, 20}, {endless, endless}, {3, 7}, true},
                                     ChunkCase{"GrowingBothPlain", {300, 40}, {endless, endless}, {2, 3}}),
                     testing::Bool()),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).name) + (std::get<1>(info.param) ? "New" : "Old");
    });

/// Many members and attributes, in the order of their names and with the order of creation kept.
class Hdf5Many : public testing::TestWithParam<std::tuple<int, bool, bool>> {};

TEST_P(Hdf5Many, MembersAndAttributesAreFound) {
  const auto [count, newest, ordered] = GetParam();
  const test::TemporaryFolder folder;
  const std::string path = folder.file("f.h5");
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS), creation = H5Pcreate(H5P_FILE_CREATE);
  if (newest) H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
  if (ordered) {
    H5Pset_link_creation_order(creation, H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
    H5Pset_attr_creation_order(creation, H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
  }
  H5Pset_userblock(creation, 512);
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation, access);
  const hid_t scalar = H5Screate(H5S_SCALAR);
  const int attributes = std::min(count, 300);  // HDF5 needs long for more in the oldest format
  const auto name = [](int i) { return "a member with number " + std::to_string(i); };
  for (int i = 0; i < count; ++i) {
    const hid_t id =
        H5Dcreate2(file, name(i).c_str(), H5T_STD_I32BE, scalar, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(id, H5T_NATIVE_INT, H5S_ALL, H5S_ALL, H5P_DEFAULT, &i);
    H5Dclose(id);
    if (i >= attributes) continue;
    const hid_t attribute =
        H5Acreate2(file, name(i).c_str(), H5T_STD_I16BE, scalar, H5P_DEFAULT, H5P_DEFAULT);
    const int value = -i;
    H5Awrite(attribute, H5T_NATIVE_INT, &value);
    H5Aclose(attribute);
  }
  H5Sclose(scalar);
  H5Fclose(file);
  H5Pclose(access);
  H5Pclose(creation);

  const File read = File::open(path);
  EXPECT_EQ(read.names().size(), static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    ASSERT_THAT(read.read<std::int32_t>(name(i)), testing::ElementsAre(i));
    if (i < attributes) {
      ASSERT_EQ(read.integer_attribute(name(i)), -i);
    }
  }
  EXPECT_FALSE(read.has(name(count)));
  EXPECT_FALSE(read.has_attribute(name(count)));
}

INSTANTIATE_TEST_SUITE_P(All, Hdf5Many,
                         testing::Combine(testing::Values(3, 30, 700, 3000), testing::Bool(),
                                          testing::Bool()));

}  // namespace
}  // namespace annulus::io
