
#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"
#include "training/weights/hf_folder.hpp"

namespace annulus::weights {
namespace {

namespace fs = std::filesystem;
using annulus::test::TemporaryFolder;
using test::small_hf_config;
using test::small_weight;
using test::write_small_model;

std::string folder_refusal(const fs::path& folder) {
  const std::string text = error_text([&] { HfWeights{folder}; });
  EXPECT_THAT(text, mentions(folder.string()));
  EXPECT_EQ(text.find('\n'), text.npos) << text;
  return text;
}

using HfTensors = annulus::test::FolderTest;

TEST_F(HfTensors, EveryPartIsReadFromEveryType) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    const TemporaryFolder folder;
    write_small_model(folder.file("model"), small_hf_config(), type);
    const HfWeights weights(folder.file("model"));
    EXPECT_EQ(weights.type(), type);
    EXPECT_EQ(weights.config().dtype, type);
    std::vector<float> all(static_cast<std::size_t>(weights.map().size()));
    weights.read(0, all);
    for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], small_weight(std::int64_t(i))) << i;
    const std::int64_t begin = weights.map().find("layers.0.attention.key").offset - 3;
    std::vector<float> part(2000);
    weights.read(begin, part);
    for (std::size_t i = 0; i < part.size(); ++i) ASSERT_EQ(part[i], small_weight(begin + std::int64_t(i)));
  }
}

TEST_F(HfTensors, RefusesTensorsThatAreNotThoseOfTheConfiguration) {
  const std::string model = folder_.file("model"), config = model + "/config.json";
  write_small_model(model, small_hf_config(), DType::f32);
  const std::string original = io::read_text(config);
  for (const auto& [from, to, named] :
       {std::array{"\"intermediate_size\": 24", "\"intermediate_size\": 25", "gate_proj.weight\""},
        {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", "\"model.layers.2.input_layernorm.weight\""},
        {"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1", "\"model.layers.1.input_layernorm.weight\""},
        {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true", "\"lm_head.weight\""}}) {
    test::edit(config, from, to);
    EXPECT_THAT(folder_refusal(model), mentions(named));
    io::write_text_atomically(config, original);
  }
  test::edit(model + "/model.safetensors", R"("dtype":"F32")", R"("dtype":"I32")");
  EXPECT_THAT(folder_refusal(model), mentions("I32"));
  fs::remove(config);
  EXPECT_THAT(folder_refusal(model), mentions("config.json"));
}

TEST_F(HfTensors, AreNotWrittenOverOthers) {
  write_small_model(folder_.file("model"), small_hf_config(), DType::f32);
  EXPECT_THAT(error_text([&] { write_small_model(folder_.file("model"), small_hf_config(), DType::f32); }),
              mentions(folder_.file("model")));
}

}  // namespace
}  // namespace annulus::weights
