// Token shards whose elements lie elsewhere, or that hold less than they say.
#include "data/shards.hpp"
#include "support/foreign_hdf5.hpp"

namespace annulus::data {
namespace {

class ShardRefused : public testing::TestWithParam<std::tuple<annulus::test::RefusedDataset, const char*>> {};

TEST_P(ShardRefused, NamesFileDatasetAndRemedy) {
  const auto& [refused, name] = GetParam();
  const annulus::test::TemporaryFolder folder;
  const std::string path = folder.file("a.h5");
  test::RawShard{}.write(path);
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  H5Ldelete(file, name, H5P_DEFAULT);
  refused.write(file, name, name == std::string("tokens") ? H5T_STD_U16LE : H5T_STD_U64LE, {5});
  H5Fclose(file);
  EXPECT_THAT(error_text([&] { TokenShard::open(path); }),
              mentions("'" + path + "'", "'/" + std::string(name) + "'"));
}

INSTANTIATE_TEST_SUITE_P(All, ShardRefused,
                         testing::Combine(testing::ValuesIn(annulus::test::refused_datasets()),
                                          testing::Values("tokens", "documents")),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_" + std::get<1>(info.param);
                         });

/// The inputs of the fuzz target. Those named crashed_hdf5_N, shards with one to four changed bytes, ended in
/// a signal or an endless loop of the HDF5 library.
TEST(ShardCorpus, IsReadOrRefused) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(ANNULUS_SHARD_CORPUS)) {
    const std::string name = entry.path().filename(), path = entry.path();
    const std::string error = error_text([&] { verify_shard(TokenShard::open(path)); });
    const bool good = !name.starts_with("refused_") && !name.starts_with("crashed_");
    if (good) {
      EXPECT_EQ(error, "no error") << name;
    } else if (name.starts_with("refused_") && name != "refused_hard" && name != "refused_cycle") {
      EXPECT_THAT(error, mentions(path, "'/tokens'"));
    } else if (error != "no error") {  // second names and damage to what no reader needs are passed over
      EXPECT_THAT(error, mentions(path));
    }
    ++files;
  }
  EXPECT_GE(files, 30);
}

}  // namespace
}  // namespace annulus::data
