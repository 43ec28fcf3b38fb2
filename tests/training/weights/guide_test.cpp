// docs/models.md as a reader follows it, with a small model, and the configurations of models under data/.

#include <annulus/training/run/config.hpp>

#include "support/error_text.hpp"
#include "support/shell.hpp"
#include "support/temporary_folder.hpp"
#include "training/data/shard.hpp"
#include "training/weights/hf_folder.hpp"

namespace annulus::weights {
namespace {

namespace fs = std::filesystem;
using annulus::test::run_shell;
using annulus::test::TemporaryFolder;

const std::string source = ANNULUS_SOURCE_FOLDER;

/// The blocks of docs/models.md whose fence says so, one behind the other.
std::string blocks(const std::string& info) {
  const std::string text = io::read_text(source + "/docs/models.md"), open = "```" + info + "\n";
  std::string all;
  for (std::size_t at = text.find(open); at != text.npos; at = text.find(open, at)) {
    at += open.size();
    all += text.substr(at, text.find("```", at) - at);
  }
  return all;
}

class Guide : public testing::Test {
 protected:
  void SetUp() override {
    if (run_shell("/usr/bin/python3 --version").status != 0) GTEST_SKIP() << "python3 is not installed";
    HfConfig config = test::small_hf_config();
    config.shape.vocabulary = 300;  // more than the tokenizer's 257
    test::write_small_model(path("model"), config, DType::bf16);
    const std::string tokenizer = source + "/tests/training/weights/byte_tokenizer.py";
    shell("/usr/bin/python3 " + tokenizer + " > model/tokenizer.json");
    folder_.write("model/generation_config.json", R"({"eos_token_id": 256})");
    for (const char* folder : {"bin", "runs", "stand_in"}) fs::create_directory(folder_.path() / folder);
    fs::create_symlink(source + "/apps", folder_.path() / "apps");
    fs::create_symlink(source + "/data/fixture/text", folder_.path() / "texts");
    if (run_shell("/usr/bin/python3 -c 'import tokenizers'").status != 0)
      fs::copy(tokenizer, folder_.path() / "stand_in" / "tokenizers.py");
    // The ranks that the machine has, and Debian's Python.
    program("../annulus", "shift 2; exec " ANNULUS_MPIRUN " 2 \"$@\"");
    program("python3", "exec env PYTHONPATH=stand_in /usr/bin/python3 -B \"$@\"");
    for (const std::string file : {ANNULUS_TRAIN_PROGRAM, ANNULUS_TOKENS_PROGRAM, ANNULUS_WEIGHTS_PROGRAM})
      fs::create_symlink(file, folder_.path() / "bin" / fs::path(file).filename());
  }

  std::string path(const std::string& name) const { return folder_.file(name); }
  void program(const std::string& name, const std::string& does) const {
    folder_.write("bin/" + name, "#!/bin/bash\n" + does + "\n");
    fs::permissions(path("bin/" + name), fs::perms::owner_all);
  }
  std::string shell(const std::string& commands) const {
    folder_.write("commands.sh", commands);
    const auto result =
        run_shell("cd " + folder_.path().string() + " && PATH=$PWD/bin:$PATH bash -ex commands.sh");
    EXPECT_EQ(result.status, 0) << result.output;
    return result.output;
  }
  /// Every `from` in the text, which has one at least.
  static void replace(std::string& text, const std::string& from, const std::string& to) {
    std::size_t at = text.find(from);
    EXPECT_NE(at, text.npos) << from;
    for (; at != text.npos; at = text.find(from, at + to.size())) text.replace(at, from.size(), to);
  }

  const TemporaryFolder folder_;
};

TEST_F(Guide, EveryCommandRuns) {
  std::string toml = blocks("toml longer.toml"), commands = blocks("sh run");
  replace(toml, "= 131072", "= 64");
  replace(toml, "= 32768", "= 16");
  replace(toml, "[run]\n", "[run]\ndevice = \"cpu\"\n");
  replace(toml, "steps = 1000\n", "steps = 4\nwarmup_steps = 1\n");
  replace(toml, "\nlr = 1e-5", "\nlr = 1e-2");  // enough for the rounding to bf16 to show
  replace(commands, "step-00001000", "step-00000004");
  folder_.write("longer.toml", toml);
  const std::string output = shell(commands);
  EXPECT_THAT(output, mentions("family        llama", "ok   shards/tokens-000000.h5",
                               "starts from the weights of model.from = 'model'", "step 4/4",
                               "are in 'longer', as bf16"));
  const data::ShardHeader shard = data::TokenShard::open(path("shards/tokens-000000.h5")).header();
  EXPECT_EQ(shard.tokenizer.name, "tokenizer.json");
  EXPECT_EQ(shard.tokenizer.vocabulary, 257);
  EXPECT_EQ(shard.tokenizer.end_of_document, 256);
  EXPECT_EQ(shard.documents, 8);
  const io::File file = io::File::open(path("shards/tokens-000000.h5"));
  EXPECT_EQ(file.dataset("tokenizer_model").elements(), fs::file_size(path("model/tokenizer.json")));

  const HfConfig longer = read_hf_config(path("longer"));
  for (const char* name : {"/tokenizer.json", "/generation_config.json"})
    EXPECT_EQ(io::read_text(path("longer") + name), io::read_text(path("model") + name));
  EXPECT_EQ(longer.shape.rope.name, "yarn");
  EXPECT_EQ(longer.shape.rope.factor, 4);
  EXPECT_EQ(longer.positions, 64);
  EXPECT_EQ(longer.shape.vocabulary, 300);
  // It has learned: the embedding of 'e', which text is full of.
  std::vector<float> before(32), after(32);
  HfWeights(path("model")).read('e' * 32, before);
  HfWeights(path("longer")).read('e' * 32, after);
  EXPECT_NE(before, after);
  // As the page says of a folder that is gone.
  shell(
      "rm -r model; ./annulus run 8 annulus-train runs/longer/config.toml "
      "--set model.from= --set train.steps=5");
}

struct Known {
  const char* name;
  std::int64_t parameters, positions;
  const char* config;  // config.json as published
};
class Configuration : public testing::TestWithParam<Known> {};

/// The files say what config.json says, so that model.from starts from the weights.
TEST_P(Configuration, IsThatOfTheModel) {
  const std::string file = fmt::format("{}/data/{}.toml", source, GetParam().name);
  const training::Config config = training::Config::load(file);
  EXPECT_EQ(model::ParameterMap(config.model).size(), GetParam().parameters);
  EXPECT_EQ(config.data.sequence_length, GetParam().positions);
  const TemporaryFolder folder;
  folder.write("config.json", GetParam().config);
  const std::vector<std::string> from = {"model.from=" + folder.path().string()};
  EXPECT_EQ(training::Config::load(file, from).model.rope, config.model.rope);  // all other keys must agree
  EXPECT_EQ(read_hf_config(folder.path()).positions, GetParam().positions);
}

constexpr const char* llama = R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu",
  "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
  "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
  "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
  "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.43.0.dev0",
  "use_cache": true, "vocab_size": 128256})";
constexpr const char* qwen = R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
  "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 2048,
  "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 32768,
  "max_window_layers": 36, "model_type": "qwen2", "num_attention_heads": 16, "num_hidden_layers": 36,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.40.1",
  "use_cache": true, "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936})";

// As published: 8.03 and 3.09 billion.
INSTANTIATE_TEST_SUITE_P(Data, Configuration,
                         testing::Values(Known{"llama-3.1-8b", 8'030'261'248, 131072, llama},
                                         Known{"qwen2.5-3b", 3'085'938'688, 32768, qwen}),
                         [](const auto& info) { return info.index == 0 ? "Llama" : "Qwen"; });

/// The lengthened rotary positions that their first lines speak of.
TEST(Configurations, CanBeExtended) {
  const auto load = [](const char* name, const std::vector<std::string>& more) {
    return training::Config::load(fmt::format("{}/data/{}.toml", source, name), more);
  };
  EXPECT_EQ(load("qwen2.5-3b", {"data.sequence_length=131072", "model.rope_scaling=yarn",
                                "model.rope_factor=4", "model.rope_original_length=32768"})
                .model.rope,
            (model::RopeScaling{.name = "yarn", .factor = 4, .original_length = 32768}));
  EXPECT_EQ(load("llama-3.1-8b", {"data.sequence_length=1048576", "model.rope_factor=64"}).model.rope.factor,
            64);
}

}  // namespace
}  // namespace annulus::weights
