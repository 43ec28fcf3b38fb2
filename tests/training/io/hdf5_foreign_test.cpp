// What other programs write: the C interface of HDF5 stands for them here.
#include <hdf5.h>

#include "training/io/hdf5_files/hdf5_writer.hpp"

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
  EXPECT_THAT(file.read<std::uint16_t>("big_endian"), ElementsAre(1, 0x0203, 3));
  for (const char* name : {"huge", "two"})  // 2^64 − 1, and two elements
    EXPECT_THAT(error_text([&] { file.integer_attribute(name); }), mentions(name));
  EXPECT_THAT(error_text([&] { file.dataset("i16"); }), mentions("'/i16'"));
}

/// The other way round: the library reads and changes a file of Annulus.
TEST(Hdf5Written, IsReadAndChangedByTheLibrary) {
  const test::TemporaryFolder folder;
  const std::string path = folder.file("f.h5");
  const std::vector<std::int32_t> numbers{1, -2, 3, 4, 5, 6};
  write_hdf5_atomically(path, [&](FileWriter& file) {
    auto matrix = file.create_dataset("group/inner/matrix", DType::i32, {2, 3});
    matrix.write(std::span(numbers));
    matrix.set_attribute("text", "läuft");
    matrix.set_attribute("empty", "");
    matrix.set_attribute("whole", -7);
    matrix.set_attribute("real", 0.5);
    file.write("group/empty", std::span<const double>(), {0, 4});
    const float scalar = 2.5f;
    file.write("scalar", std::span(&scalar, 1), {});
    file.set_attribute("format_version", 3);
  });

  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  ASSERT_GE(file, 0);
  const auto read_dataset = [&](const char* name, hid_t type, void* values) {
    const hid_t id = H5Dopen2(file, name, H5P_DEFAULT);
    EXPECT_GE(H5Dread(id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), 0) << name;
    H5Dclose(id);
  };
  const auto read_attribute = [&](const char* object, const char* name, hid_t type, void* value) {
    const hid_t id = H5Aopen_by_name(file, object, name, H5P_DEFAULT, H5P_DEFAULT);
    EXPECT_GE(H5Aread(id, type, value), 0) << name;
    H5Aclose(id);
  };
  std::vector<std::int32_t> matrix(6);
  read_dataset("group/inner/matrix", H5T_NATIVE_INT32, matrix.data());
  EXPECT_EQ(matrix, numbers);
  float scalar = 0;
  read_dataset("scalar", H5T_NATIVE_FLOAT, &scalar);
  EXPECT_EQ(scalar, 2.5f);
  const hid_t empty = H5Dopen2(file, "group/empty", H5P_DEFAULT), space = H5Dget_space(empty);
  EXPECT_EQ(H5Sget_simple_extent_npoints(space), 0);
  H5Sclose(space);
  H5Dclose(empty);
  const hid_t text = string_type(H5T_VARIABLE, H5T_STR_NULLTERM);
  H5Tset_cset(text, H5T_CSET_UTF8);
  for (const auto& [name, want] : {std::pair{"text", "läuft"}, std::pair{"empty", ""}}) {
    char* got = nullptr;
    read_attribute("group/inner/matrix", name, text, &got);
    EXPECT_STREQ(got == nullptr ? "" : got, want) << name;
    H5free_memory(got);
  }
  std::int64_t whole = 0;
  double real = 0;
  read_attribute("group/inner/matrix", "whole", H5T_NATIVE_INT64, &whole);
  read_attribute("group/inner/matrix", "real", H5T_NATIVE_DOUBLE, &real);
  EXPECT_EQ(whole, -7);
  EXPECT_EQ(real, 0.5);

  // More members and attributes than fit in the headers that were written.
  const std::int64_t nine = 9;
  const hid_t changed = H5Dopen2(file, "group/inner/matrix", H5P_DEFAULT);
  EXPECT_GE(H5Adelete(changed, "whole"), 0);
  for (int i = 0; i < 40; ++i) {
    const std::string name = "more" + std::to_string(i);
    attribute(changed, name.c_str(), H5T_NATIVE_INT64, &nine);
    const hsize_t extent = 1;
    const hid_t one = H5Screate_simple(1, &extent, nullptr);
    const hid_t more = H5Dcreate2(file, ("group/" + name).c_str(), H5T_STD_I64LE, one, H5P_DEFAULT,
                                  H5P_DEFAULT, H5P_DEFAULT);
    EXPECT_GE(H5Dwrite(more, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, &nine), 0);
    H5Dclose(more);
    H5Sclose(one);
  }
  H5Dclose(changed);
  H5Tclose(text);
  EXPECT_GE(H5Fclose(file), 0);
  const File again = File::open(path);
  EXPECT_EQ(again.read<std::int32_t>("group/inner/matrix"), numbers);
  EXPECT_THAT(again.read<std::int64_t>("group/more39"), ElementsAre(9));
  EXPECT_EQ(again.dataset("group/inner/matrix").integer_attribute("more39"), 9);
  EXPECT_EQ(again.dataset("group/inner/matrix").string_attribute("text"), "läuft");
}

}  // namespace
}  // namespace annulus::io
