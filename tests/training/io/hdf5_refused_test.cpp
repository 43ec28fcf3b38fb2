// What leads out of a file, to code of others or to more than the file holds, is refused. The C interface of
// HDF5 writes it here.

#include "support/error_text.hpp"
#include "support/foreign_hdf5.hpp"
#include "support/temporary_folder.hpp"
#include "training/io/atomic.hpp"
#include "training/io/hdf5_files/hdf5_writer.hpp"

namespace annulus::io {
namespace {

/// A file that `write` fills, in the oldest format or in the newest that this HDF5 knows.
std::string hdf5_file(const test::TemporaryFolder& folder, bool newest,
                      const std::function<void(hid_t)>& write) {
  const std::string path = folder.file("f.h5");
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  if (newest) H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
  write(file);
  H5Fclose(file);
  H5Pclose(access);
  return path;
}

class Hdf5Refused : public testing::TestWithParam<std::tuple<test::RefusedDataset, bool>> {};

TEST_P(Hdf5Refused, NamesFileObjectAndRemedy) {
  const auto& [refused, newest] = GetParam();
  const test::TemporaryFolder folder;
  const std::string path = hdf5_file(folder, newest, [&](hid_t file) {
    const hid_t group = H5Gcreate2(file, "g", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    refused.write(group, "x", H5T_STD_I32LE, {6});
    H5Gclose(group);
  });
  const File file = File::open(path);
  EXPECT_THAT(file.group("g").names(), testing::Contains("x"));
  EXPECT_THAT(error_text([&] { file.dataset("g/x"); }),
              mentions("'" + path + "'", "'/g/x'", refused.problem, refused.remedy));
}

INSTANTIATE_TEST_SUITE_P(All, Hdf5Refused,
                         testing::Combine(testing::ValuesIn(test::refused_datasets()), testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) +
                                  (std::get<1>(info.param) ? "New" : "Old");
                         });

using Hdf5RefusedObjects = annulus::test::FolderTest;

TEST_F(Hdf5RefusedObjects, SecondNamesAndCycles) {
  for (const bool newest : {false, true}) {
    const test::TemporaryFolder folder;
    const File file = File::open(hdf5_file(folder, newest, [](hid_t id) {
      H5Gclose(H5Gcreate2(id, "a", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
      H5Lcreate_hard(id, "/", id, "a/root", H5P_DEFAULT, H5P_DEFAULT);
      H5Lcreate_hard(id, "a", id, "b", H5P_DEFAULT, H5P_DEFAULT);
    }));
    EXPECT_THAT(error_text([&] { file.group("a/root"); }), mentions("'/a/root'", "'/'"));
    EXPECT_THAT(error_text([&] { file.group("b"); }), mentions("'/b'", "'/a'"));
  }
}

TEST_F(Hdf5RefusedObjects, DeepGroups) {
  std::string deep;
  for (int i = 0; i < 80; ++i) deep += "/g";
  write_hdf5_atomically(folder_.file("a.h5"),
                        [&](FileWriter& file) { file.create_dataset(deep, DType::u8, {0}); });
  EXPECT_THAT(error_text([&] { File::open(folder_.file("a.h5")).has(deep); }), mentions("64 groups"));
}

/// Chunks that claim to unpack to more than their bytes can.
TEST_F(Hdf5RefusedObjects, ChunksThatBurst) {
  const std::string path = hdf5_file(folder_, false, [](hid_t file) {
    const hsize_t chunk = 1 << 20;
    const hid_t id = test::detail::dataset(file, "x", H5T_STD_U8LE, {chunk}, [&](hid_t properties) {
      H5Pset_chunk(properties, 1, &chunk);
      H5Pset_deflate(properties, 9);
    });
    const hsize_t start = 0;
    const std::vector<unsigned char> few(200);  // 1032 times as many would not do
    H5Dwrite_chunk(id, H5P_DEFAULT, 0, &start, few.size(), few.data());
    H5Dclose(id);
  });
  EXPECT_THAT(error_text([&] { File::open(path).dataset("x"); }), mentions(path, "'/x'"));
}

/// What a reader sees of the file of the test below, in one text.
std::string contents(const std::string& path) {
  const File file = File::open(path);
  const Dataset x = file.dataset("g/x");
  std::string text = fmt::format("{} {} {} {} {} {}", file.string_attribute("format"),
                                 file.string_attribute("long"), file.integer_attribute("n"),
                                 x.string_attribute("unit"), name_of(x.type()), x.extents().at(0));
  for (const std::uint16_t value : file.read<std::uint16_t>("g/x")) text += fmt::format(" {}", value);
  for (const std::string& name : file.names()) text += " " + name;
  return text;
}

using Hdf5Checksums = annulus::test::FolderTest;

/// The checksums of HDF5 and that of the strings: a changed byte is an error, or changes nothing.
TEST_F(Hdf5Checksums, NoChangedByteOfMetadataIsRead) {
  const std::vector<std::uint16_t> values(50, 0x5a5b);
  write_hdf5_atomically(folder_.file("a.h5"), [&](FileWriter& file) {
    file.set_attribute("format", "some text");
    file.set_attribute("long", std::string(500, 'x'));
    file.set_attribute("n", 7);
    file.set_attribute("real", 0.5);
    for (int i = 0; i < 10; ++i) file.set_attribute(fmt::format("more{}", i), i);  // a heap of attributes
    DatasetWriter x = file.create_dataset("g/x", DType::u16, {50});
    x.write(std::span<const std::uint16_t>(values));
    x.set_attribute("unit", "nats");
  });
  const std::string good = contents(folder_.file("a.h5")), bytes = read_text(folder_.file("a.h5"));
  const std::size_t data = bytes.find("\x5b\x5a\x5b\x5a\x5b\x5a");
  ASSERT_NE(data, std::string::npos);
  const std::string path = folder_.write("b.h5", bytes);
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  const auto put = [&](std::size_t at, char byte) {
    file.seekp(static_cast<std::streamoff>(at)).put(byte).flush();
  };
  std::size_t errors = 0;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    if (at >= data && at < data + 2 * values.size()) continue;
    put(at, static_cast<char>(bytes[at] ^ (1 << at % 8)));
    std::string seen;
    const std::string error = error_text([&] { seen = contents(path); });
    if (error == "no error") {
      ASSERT_EQ(seen, good) << "byte " << at;
    } else {
      ASSERT_THAT(error, mentions(path)) << "byte " << at;
      ++errors;
    }
    put(at, bytes[at]);
  }
  EXPECT_GT(errors, 1000u);  // of some 7000; the rest is free
}

/// HDF5 gives strings no checksum, Annulus does.
TEST_F(Hdf5Checksums, ChangedStringsAreNamed) {
  write_hdf5_atomically(folder_.file("a.h5"), [&](FileWriter& file) {
    file.set_attribute("format", 5);
    file.set_attribute("format", "good text");
    file.set_attribute("gone", "text");
    file.set_attribute("gone", 1);
  });
  EXPECT_EQ(File::open(folder_.file("a.h5")).string_attribute("format"), "good text");
  std::string bytes = read_text(folder_.file("a.h5"));
  bytes[bytes.find("good text")] = 'f';
  const std::string path = folder_.write("b.h5", bytes);
  EXPECT_THAT(error_text([&] { File::open(path).string_attribute("format"); }), mentions("strings_crc32"));
}

}  // namespace
}  // namespace annulus::io
