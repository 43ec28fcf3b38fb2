
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

/// Of what the model is written as.
std::set<std::string> names_of(const HfConfig& config) {
  std::set<std::string> names;
  std::int64_t end = 0;
  for (const HfTensor& tensor : hf_tensors(model::ParameterMap(config.shape), family_of(config))) {
    names.insert(tensor.name);
    EXPECT_EQ(tensor.begin, end);
    end += tensor.size();
  }
  EXPECT_EQ(end, model::ParameterMap(config.shape).size());
  return names;
}

TEST_F(HfTensors, NamesAreThoseOfTransformers) {
  const std::set<std::string> names = names_of(small_hf_config());
  EXPECT_THAT(names,
              testing::IsSupersetOf(
                  {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight",
                   "model.layers.1.input_layernorm.weight", "model.layers.0.self_attn.q_proj.weight",
                   "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight",
                   "model.layers.0.self_attn.o_proj.weight", "model.layers.0.post_attention_layernorm.weight",
                   "model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight",
                   "model.layers.1.mlp.down_proj.weight"}));
  EXPECT_EQ(names.size(), 3u + 2u * 9u);
}

TEST_F(HfTensors, NamesOfBiasesAndNormsAreThoseOfQwen) {
  const auto differences = [](const HfConfig& config) {
    std::set<std::string> names = names_of(config);
    for (const std::string& plain : names_of(small_hf_config())) names.erase(plain);
    return names;
  };
  EXPECT_THAT(
      differences(test::small_qwen2()),
      testing::ElementsAre("model.layers.0.self_attn.k_proj.bias", "model.layers.0.self_attn.q_proj.bias",
                           "model.layers.0.self_attn.v_proj.bias", "model.layers.1.self_attn.k_proj.bias",
                           "model.layers.1.self_attn.q_proj.bias", "model.layers.1.self_attn.v_proj.bias"));
  EXPECT_THAT(differences(test::small_qwen3()),
              testing::ElementsAre(
                  "model.layers.0.self_attn.k_norm.weight", "model.layers.0.self_attn.q_norm.weight",
                  "model.layers.1.self_attn.k_norm.weight", "model.layers.1.self_attn.q_norm.weight"));
}

void expect_small_weights(const HfWeights& weights) {
  std::vector<float> values(static_cast<std::size_t>(weights.map().size()));
  weights.read(0, values);
  for (std::int64_t i = 0; i < weights.map().size(); ++i)
    ASSERT_EQ(values[std::size_t(i)], small_weight(i)) << i;
}

TEST_F(HfTensors, EveryPartIsReadFromEveryType) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    const TemporaryFolder folder;
    write_small_model(folder.file("model"), small_hf_config(), type);
    const HfWeights weights(folder.file("model"));
    EXPECT_EQ(weights.type(), type);
    EXPECT_EQ(weights.config().dtype, type);
    expect_small_weights(weights);
    const std::int64_t begin = weights.map().find("layers.0.attention.key").offset - 3;
    std::vector<float> part(2000);
    weights.read(begin, part);
    for (std::size_t i = 0; i < part.size(); ++i) ASSERT_EQ(part[i], small_weight(begin + std::int64_t(i)));
  }
}

TEST_F(HfTensors, TensorsLieWithRowsOfOutFeatures) {
  write_small_model(folder_.file("model"), small_hf_config(), DType::f32);
  const HfWeights weights(folder_.file("model"));
  const TensorFolder::Location key = weights.tensors().find("model.layers.1.self_attn.k_proj.weight");
  EXPECT_EQ(key.tensor->extents, (io::Extents{2 * 16, 32}));
  float value = 0;
  key.file->read(*key.tensor, 5 * 32 + 7, std::span(&value, 1));
  EXPECT_EQ(value, small_weight(weights.map().find("layers.1.attention.key").offset + 5 * 32 + 7));
}

TEST_F(HfTensors, ReadAndWrittenAgainHaveTheSameBits) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    for (HfConfig config : {small_hf_config(), test::small_qwen2(), test::small_qwen3()})
      for (const bool tied : {false, true}) {
        const TemporaryFolder folder;
        config.shape.tied = tied;
        config.sliding_window = tied ? 16 : 0;
        write_small_model(folder.file("a"), config, type);
        const HfWeights weights(folder.file("a"));
        write_hf_folder(folder.file("b"), {.config = weights.config(),
                                           .type = weights.type(),
                                           .read = [&](std::int64_t begin, std::span<float> values) {
                                             weights.read(begin, values);
                                           }});
        for (const char* name : {"config.json", "model.safetensors"})
          EXPECT_EQ(io::read_text(folder.file(std::string("a/") + name)),
                    io::read_text(folder.file(std::string("b/") + name)));
      }
  }
}

TEST_F(HfTensors, BiasesAndNormsLieAsTheirConfigurationSays) {
  write_small_model(folder_.file("2"), test::small_qwen2(), DType::f32);
  write_small_model(folder_.file("3"), test::small_qwen3(), DType::f32);
  const HfWeights two(folder_.file("2")), three(folder_.file("3"));
  EXPECT_EQ(two.config().family, "qwen2");
  EXPECT_EQ(three.config().family, "qwen3");
  const auto first_of = [](const HfWeights& weights, const char* name, std::uint64_t size) {
    const TensorFolder::Location place = weights.tensors().find(name);
    EXPECT_EQ(place.tensor->extents, (io::Extents{size}));
    float value = 0;
    place.file->read(*place.tensor, 0, std::span(&value, 1));
    return value;
  };
  EXPECT_EQ(first_of(two, "model.layers.1.self_attn.v_proj.bias", 2 * 16),
            small_weight(two.map().find("layers.1.attention.value_bias").offset));
  EXPECT_EQ(first_of(three, "model.layers.1.self_attn.k_norm.weight", 16),
            small_weight(three.map().find("layers.1.attention.key_norm").offset));
  // A Qwen2 without its biases, and a LLaMA with some.
  test::edit(folder_.file("2/config.json"), "\"model_type\": \"qwen2\"", "\"model_type\": \"qwen3\"");
  test::edit(folder_.file("2/config.json"), "Qwen2ForCausalLM", "Qwen3ForCausalLM");
  EXPECT_THAT(folder_refusal(folder_.file("2")), mentions("\"model.layers.0.self_attn.q_norm.weight\""));
}

TEST_F(HfTensors, LargeModelsComeInSeveralFiles) {
  write_small_model(folder_.file("model"), small_hf_config(), DType::bf16, 6000);
  EXPECT_TRUE(fs::exists(folder_.file("model/model-00001-of-00008.safetensors")));
  EXPECT_FALSE(fs::exists(folder_.file("model/model.safetensors")));
  const HfWeights weights(folder_.file("model"));
  EXPECT_EQ(weights.tensors().files().size(), 8u);
  expect_small_weights(weights);
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

TEST_F(HfTensors, RefusesNumbersThatAreNotFinite) {
  const auto with = [](float bad) {
    return [bad](std::int64_t begin, std::span<float> values) {
      test::read_small_weights(begin, values);
      values[3] = bad;
    };
  };
  const auto write = [&](DType type, float bad) {
    return error_text([&] {
      write_hf_folder(folder_.file("new"), {.config = small_hf_config(), .type = type, .read = with(bad)});
    });
  };
  EXPECT_THAT(write(DType::f16, 1e6f), mentions("embed_tokens", "f16"));
  EXPECT_THAT(write(DType::f32, std::numeric_limits<float>::quiet_NaN()), mentions("embed_tokens"));
  EXPECT_TRUE(fs::is_empty(folder_.file("new")));
  write_small_model(folder_.file("model"), small_hf_config(), DType::f32);
  const std::string path = folder_.file("model/model.safetensors");
  std::string bytes = io::read_text(path);
  const float infinite = std::numeric_limits<float>::infinity();
  bytes.replace(bytes.size() - 4, 4, reinterpret_cast<const char*>(&infinite), 4);
  io::write_text_atomically(path, bytes);
  const HfWeights weights(folder_.file("model"));
  std::vector<float> values(8);
  EXPECT_THAT(error_text([&] { weights.read(weights.map().size() - 8, values); }),
              mentions(path, "\"lm_head.weight\""));
}

TEST_F(HfTensors, AreNotWrittenOverOthers) {
  write_small_model(folder_.file("model"), small_hf_config(), DType::f32);
  EXPECT_THAT(error_text([&] { write_small_model(folder_.file("model"), small_hf_config(), DType::f32); }),
              mentions(folder_.file("model")));
}

}  // namespace
}  // namespace annulus::weights
