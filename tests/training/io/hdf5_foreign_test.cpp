// What other programs write: the C interface of HDF5 stands for them here.
#include <hdf5.h>

#include "training/io/hdf5_files/hdf5.hpp"

#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::io {
namespace {

using testing::ElementsAre;

void attribute(hid_t owner, const char* name, hid_t type, const void* value, hsize_t elements = 0) {
  const hid_t space = elements == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &elements, nullptr);
  const hid_t id = H5Acreate2(owner, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
  ASSERT_GE(H5Awrite(id, type, value), 0);
  H5Aclose(id);
  H5Sclose(space);
}

hid_t string_type(std::size_t size, H5T_str_t padding) {
  const hid_t type = H5Tcopy(H5T_C_S1);
  H5Tset_size(type, size);
  H5Tset_strpad(type, padding);
  return type;
}

class Hdf5Foreign : public testing::Test {
 protected:
  void SetUp() override {
    const hid_t file = H5Fcreate(folder_.file("f.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const hid_t padded = string_type(8, H5T_STR_NULLPAD), spaced = string_type(8, H5T_STR_SPACEPAD),
                full = string_type(4, H5T_STR_NULLPAD);
    attribute(file, "padded", padded, "abc\0\0\0\0\0");
    attribute(file, "spaced", spaced, "abc     ");
    attribute(file, "full", full, "abcd");
    const std::uint8_t small = 200;
    attribute(file, "u8", H5T_NATIVE_UINT8, &small);
    const std::uint64_t huge = ~std::uint64_t{0};
    attribute(file, "huge", H5T_NATIVE_UINT64, &huge);
    const std::int64_t two[] = {1, 2};
    attribute(file, "two", H5T_NATIVE_INT64, two, 2);
    attribute(file, "one", H5T_NATIVE_INT64, two, 1);
    const float half = 0.5f;
    attribute(file, "f32", H5T_NATIVE_FLOAT, &half);
    for (const hid_t type : {padded, spaced, full}) H5Tclose(type);

    const hsize_t extent = 3;
    const std::int16_t narrow[] = {1, 0x0203, 3};
    const hid_t space = H5Screate_simple(1, &extent, nullptr);
    write(file, "big_endian", H5T_STD_U16BE, space, H5T_NATIVE_INT16, narrow);
    write(file, "i16", H5T_STD_I16LE, space, H5T_NATIVE_INT16, narrow);
    H5Sclose(space);
    H5Fclose(file);
  }

  static void write(hid_t file, const char* name, hid_t stored, hid_t space, hid_t memory,
                    const void* values) {
    const hid_t dataset = H5Dcreate2(file, name, stored, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    ASSERT_GE(H5Dwrite(dataset, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), 0);
    H5Dclose(dataset);
  }

  test::TemporaryFolder folder_;
};

TEST_F(Hdf5Foreign, IsReadOrNamed) {
  const File file = File::open(folder_.file("f.h5"));
  EXPECT_EQ(file.string_attribute("padded"), "abc");
  EXPECT_EQ(file.string_attribute("spaced"), "abc");
  EXPECT_EQ(file.string_attribute("full"), "abcd");
  EXPECT_EQ(file.integer_attribute("u8"), 200);
  EXPECT_EQ(file.integer_attribute("one"), 1);
  EXPECT_EQ(file.double_attribute("f32"), 0.5);
  EXPECT_THAT(file.read<std::uint16_t>("big_endian"), ElementsAre(1, 0x0203, 3));
  for (const char* name : {"huge", "two"})  // 2^64 − 1, and two elements
    EXPECT_THAT(error_text([&] { file.integer_attribute(name); }), mentions(name));
  EXPECT_THAT(error_text([&] { file.dataset("i16"); }), mentions("'/i16'"));
}

TEST_F(Hdf5Foreign, PrintingOfOtherUsersIsLeftAlone) {
  H5E_auto2_t before = nullptr, after = nullptr;
  void *before_data = nullptr, *after_data = nullptr;
  H5Eget_auto2(H5E_DEFAULT, &before, &before_data);
  EXPECT_THAT(error_text([&] { File::open(folder_.file("none.h5")); }), mentions("none.h5"));
  H5Eget_auto2(H5E_DEFAULT, &after, &after_data);
  EXPECT_EQ(before, after);
  EXPECT_NE(after, nullptr);
}

}  // namespace
}  // namespace annulus::io
