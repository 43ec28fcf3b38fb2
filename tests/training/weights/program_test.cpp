// annulus-weights as its users run it.
#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include <annulus/training/checkpoint/reader.hpp>

#include "support/error_text.hpp"
#include "support/names_in.hpp"
#include "support/shell.hpp"
#include "support/temporary_folder.hpp"
#include "training/weights/hf_folder.hpp"

namespace annulus::weights {
namespace {

namespace fs = std::filesystem;
using annulus::test::run_shell;
using annulus::test::ShellResult;
using testing::ElementsAre;

class Program : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.file(name); }

  ShellResult weights(const std::string& arguments) const {
    return run_shell("cd " + folder_.path().string() + " && " ANNULUS_WEIGHTS_PROGRAM " " + arguments);
  }
  /// Output of a command that ends well.
  std::string output(const std::string& arguments) const { return output_of(weights(arguments)); }
  /// Output of a command that ends with status 1 and one line.
  std::string failure(const std::string& arguments) const {
    const std::string result = output_of(weights(arguments), 1);
    EXPECT_EQ(std::count(result.begin(), result.end(), '\n'), 1) << result;
    EXPECT_TRUE(result.starts_with("annulus-weights: ")) << result;
    return result;
  }
  std::vector<std::string> files(const std::string& name = "") const {
    return annulus::test::names_in(folder_.path() / name);
  }

  const annulus::test::TemporaryFolder folder_;
  HfConfig config_ = test::small_hf_config();
};

TEST_F(Program, NamesGiveTerminalsNoCommandsAndForgeNoLines) {
  const std::string result =
      output_of(weights("info \"$(printf 'no\\033[2J\\nannulus-weights: all is well')\""), 1);
  EXPECT_THAT(result, mentions("no\\x1b[2J"));
  EXPECT_THAT(result, testing::Not(testing::AnyOf(mentions("\x1b"), mentions("\nannulus-weights:"))));
}

TEST_F(Program, ExportSaysThatATokenizerOfFewerIdsMustFollow) {
  test::write_small_model(path("model"), config_, DType::f32);
  const auto exported = [&](const std::string& tokenizer) {
    io::write_text_atomically(path("model/tokenizer.json"), tokenizer);
    output("import model imported");
    const std::string text = output("export imported exported");
    for (const char* name : {"imported", "exported"}) fs::remove_all(path(name));
    return text;
  };
  const auto told = mentions("tokenizer must follow");
  EXPECT_THAT(exported(R"({"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2}]})"),
              mentions("has 3 ids", "tokenizer must follow"));
  EXPECT_THAT(exported(R"({"model": {"vocab": [["a", -1.0], ["b", -2.0]]}})"), mentions("has 2 ids"));
  EXPECT_THAT(exported(fmt::format(R"({{"model": {{"vocab": {{"a": {}}}}}}})", config_.shape.vocabulary - 1)),
              testing::Not(told));
  EXPECT_THAT(exported("{}"), testing::Not(told));
}

TEST_F(Program, ImportAndExportKeepEveryBit) {
  config_.shape.rope = {.name = "llama3", .factor = 8, .original_length = 16};
  for (const DType type : {DType::bf16, DType::f16, DType::f32})
    for (const bool tied : {false, true}) {
      config_.shape.tied = tied;
      config_.sliding_window = tied ? 20 : 0;
      config_.shape.block.qkv_bias = type == DType::bf16;  // Qwen2.5
      config_.shape.block.qk_norm = type == DType::f16 ? model::QkNorm::head : model::QkNorm::none;  // Qwen3
      const std::string dtype(name_of(type));
      test::write_small_model(path("model"), config_, type);
      EXPECT_THAT(output("import model imported"), mentions("'imported'"));
      // A run in bf16 or f32 has the type of its weights; f16 must be asked for.
      output("export imported exported" + (type == DType::f16 ? " --dtype f16" : std::string()));
      EXPECT_THAT(files("exported"), ElementsAre("config.json", "model.safetensors"));
      for (const std::string& file : files("exported"))
        EXPECT_EQ(io::read_text(path("exported/" + file)), io::read_text(path("model/" + file)))
            << dtype << " " << file;
      for (const char* name : {"model", "imported", "exported"}) fs::remove_all(path(name));
    }
}

TEST_F(Program, TheImportedCheckpointIsWhole) {
  config_.positions = 0;
  test::write_small_model(path("model"), config_, DType::f32, 5000);
  EXPECT_GT(files("model").size(), 3u);
  output("import model/ imported/");
  EXPECT_THAT(files("imported"),
              ElementsAre("manifest.json", "model_files", "part-00000-of-00001.safetensors"));
  const checkpoint::Checkpoint checkpoint(path("imported"));
  checkpoint.verify();
  EXPECT_EQ(checkpoint.progress().step, 0);
  std::int64_t element = 0;
  for (const checkpoint::StoredTensor& tensor : checkpoint.tensors()) {
    checkpoint.read(checkpoint::Buffer::parameters, tensor.name, 0, tensor.elements(),
                    [&](std::int64_t, std::span<const float> values) {
                      for (const float value : values) EXPECT_EQ(value, test::small_weight(element++));
                    });
    checkpoint.read(checkpoint::Buffer::second_moment, tensor.name, 0, tensor.elements(),
                    [](std::int64_t, std::span<const float> values) {
                      for (const float value : values) EXPECT_EQ(value, 0.0f);
                    });
  }
  EXPECT_EQ(element, model::ParameterMap(config_.shape).size());
  EXPECT_THAT(output("export imported exported --positions 4096 --dtype bf16"), mentions("bf16"));
  EXPECT_EQ(read_hf_config(path("exported")).positions, 4096);
  EXPECT_EQ(HfWeights(path("exported")).type(), DType::bf16);
}

// A Phi-3 is a LLaMA whose tensors are laid out otherwise: what travels with a checkpoint tells which of them
// it was.
TEST_F(Program, ExportsAreOfTheFamilyThatIsAskedFor) {
  config_.family = "phi3";
  test::write_small_model(path("model"), config_, DType::bf16);
  EXPECT_EQ(read_hf_config(path("model")).family, "phi3");
  output("import model imported");
  EXPECT_THAT(output("info imported"), mentions("exports_as    phi3\n"));
  EXPECT_THAT(output("export imported as-llama --family llama"), mentions("'as-llama'"));
  EXPECT_EQ(read_hf_config(path("as-llama")).family, "llama");
  EXPECT_THAT(output("export imported exported"), mentions("'exported'"));
  const HfWeights model(path("model")), exported(path("exported"));
  EXPECT_EQ(exported.config().family, "phi3");
  for (const TensorFolder::Location& theirs : model.tensors().all())
    EXPECT_TRUE(exported.tensors().find(theirs.tensor->name)) << theirs.tensor->name;
  EXPECT_THAT(failure("export imported other --family olmo2"), mentions("--family olmo2", "llama"));
  EXPECT_THAT(failure("export imported other --family gpt2"), mentions("--family gpt2", "llama"));
  fs::remove_all(path("imported/model_files"));  // of an older version
  output("export imported again --family phi3");
  EXPECT_EQ(read_hf_config(path("again")).family, "phi3");
  output("export imported guessed");
  EXPECT_EQ(read_hf_config(path("guessed")).family, "llama");
}

TEST_F(Program, InfoDescribesEitherFormat) {
  config_.shape.rope = {.name = "yarn", .factor = 4, .original_length = 16};
  config_.sliding_window = 20;
  test::write_small_model(path("model"), config_, DType::bf16);
  output("import model imported");
  EXPECT_THAT(output("info model"),
              mentions("family        mistral\n", "dtype         bf16\n",
                       "rope          theta 10000.0, scaling yarn, factor 4.0, original_length 16",
                       "mask          window:19,0\n", "qkv_bias      no\n"));
  const auto model = nlohmann::json::parse(output("info model --json")),
             imported = nlohmann::json::parse(output("info --json imported"));
  EXPECT_EQ(model.at("parameters"), model::ParameterMap(config_.shape).size());
  EXPECT_EQ(model.at("norm_epsilon"), 1e-5);
  EXPECT_EQ(model.at("tied"), false);
  for (const char* key : {"parameters", "vocabulary", "layers", "hidden", "heads", "kv_heads", "head_dim",
                          "ffn", "norm_epsilon", "tied", "rope", "positions", "mask", "qkv_bias"})
    EXPECT_EQ(model.at(key), imported.at(key)) << key;
  EXPECT_EQ(imported.at("format"), "checkpoint");
  EXPECT_EQ(imported.at("exports_as"), "mistral");
  EXPECT_EQ(imported.at("trained_in"), "bf16");
  EXPECT_EQ(imported.at("step"), 0);
  EXPECT_EQ(imported.at("parts"), 1);
  EXPECT_GT(imported.at("bytes"), 3 * 4 * model::ParameterMap(config_.shape).size());
  EXPECT_EQ(imported.at("verified"), true);
  EXPECT_THAT(output("info imported"),
              mentions("reading       epoch 0, sequences 0\n", "verified      yes\n"));
  EXPECT_THAT(output("info imported --no-verify"), mentions("verified      no\n"));
}

TEST_F(Program, WhatCannotBeReadIsOneLine) {
  test::write_small_model(path("model"), config_, DType::f32);
  output("import model imported");
  const auto before = files();
  fs::create_directory(path("cache"));
  fs::create_symlink("blobs/0123", path("cache/config.json"));
  for (const auto& [arguments, named] : {std::pair{"info nowhere", "'nowhere'"},
                                         {"info .", "config.json"},
                                         {"info model/config.json", "'model/config.json'"},
                                         {"info cache", "'cache/config.json'"},
                                         {"import imported out", "'imported'"},
                                         {"export model out", "'model'"},
                                         {"import model imported", "'imported'"},
                                         {"export imported model", "'model'"},
                                         {"import model no/such/folder", "'no/such/folder'"}})
    EXPECT_THAT(failure(arguments), mentions(named));
  fs::remove_all(path("cache"));
  EXPECT_EQ(files(), before);
  EXPECT_EQ(weights("export imported out --dtype f64").status, 1);
  EXPECT_EQ(weights("export imported out --positions 0").status, 1);
  EXPECT_EQ(weights("").status, 1);
  EXPECT_EQ(weights("--help").status, 0);
}

TEST_F(Program, DamageIsFoundAndNothingIsLeft) {
  test::write_small_model(path("model"), config_, DType::bf16);
  output("import model imported");
  const std::string part = path("imported/part-00000-of-00001.safetensors");
  std::string bytes = io::read_text(part);
  bytes[9000] ^= 1;
  io::write_text_atomically(part, bytes);
  EXPECT_THAT(failure("export imported exported"), mentions("part-00000-of-00001.safetensors"));
  EXPECT_THAT(failure("info imported"), mentions("part-00000-of-00001.safetensors"));
  output("info imported --no-verify");
  bytes = io::read_text(path("model/model.safetensors"));
  bytes[bytes.size() - 1] = '\x7f', bytes[bytes.size() - 2] = '\xc0';  // not a number
  io::write_text_atomically(path("model/model.safetensors"), bytes);
  EXPECT_THAT(failure("import model other"), mentions("model.safetensors", "\"lm_head.weight\""));
  test::edit(path("model/config.json"), "\"LlamaForCausalLM\"", "\"GPT2LMHeadModel\"");
  EXPECT_THAT(failure("info model"), mentions("architectures"));
  EXPECT_THAT(files(), ElementsAre("imported", "model"));
}

/// Files beside the weights, and what must stay behind.
class ProgramFiles : public Program {
 protected:
  ProgramFiles() {
    config_.token_ids = {{"bos_token_id", "3"}, {"eos_token_id", "[4,5]"}};
    test::write_small_model(path("model"), config_, DType::bf16);
    for (const auto& [name, contents] : plain_) folder_.write("model/" + name, contents);
  }

  const std::map<std::string, std::string> plain_ = {
      {"generation_config.json", R"({"eos_token_id": [4, 5], "temperature": 0.6})"},
      {"tokenizer.json", R"({"version": "1.0"})"},
      {"tokenizer.model", std::string("\n\0\xff model", 9)},
      {"tokenizer_config.json", R"({"model_max_length": 1000000000000000019884624838656})"},
      {"special_tokens_map.json", R"({"bos_token": "<s>"})"},
      {"chat_template.jinja", "{{ messages }}"},
      {"chat_template.json", R"({"chat_template": "{{ messages }}"})"}};
};

TEST_F(ProgramFiles, TravelToTheExport) {
  folder_.write("model/modeling.py", "import os");
  folder_.write("model/README.md", "a card");
  output("import model imported");
  fs::rename(path("imported"), path("elsewhere"));
  EXPECT_THAT(output("info elsewhere"), mentions("\"tokenizer.json\""));
  EXPECT_EQ(output("export elsewhere exported").find("warning"), std::string::npos);
  std::vector<std::string> expected = {"config.json", "model.safetensors"};
  for (const auto& [name, contents] : plain_) {
    expected.push_back(name);
    EXPECT_EQ(io::read_text(path("exported/" + name)), contents) << name;
  }
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(files("exported"), expected);
  EXPECT_EQ(read_hf_config(path("exported")).token_ids, config_.token_ids);
}

TEST_F(ProgramFiles, CodeStaysBehind) {
  folder_.write("model/tokenizer_config.json",
                R"({"auto_map": {"AutoTokenizer": ["t.T", null]}, "bos_token": "<s>"})");
  folder_.write("model/generation_config.json",
                R"({"custom_generate": "somebody/code", "quantization_config": {"bits": 4}, "top_k": 3})");
  test::edit(path("model/config.json"), "{", R"({"auto_map": {"AutoModel": "m.M"},)");
  folder_.write("model/modeling_m.py", "import this");
  EXPECT_THAT(output("import model imported"),
              mentions("tokenizer_config.json': auto_map", "/config.json': auto_map", "modeling_m.py",
                       "quantization_config", "custom_generate"));
  output("export imported exported");
  const auto settings = [&](const std::string& name) {
    return nlohmann::json::parse(io::read_text(path("exported/" + name)));
  };
  EXPECT_EQ(settings("tokenizer_config.json"), nlohmann::json({{"bos_token", "<s>"}}));
  EXPECT_EQ(settings("generation_config.json"), nlohmann::json({{"top_k", 3}}));
  EXPECT_FALSE(settings("config.json").contains("auto_map"));
}

TEST_F(ProgramFiles, ThatAreMissingAreAWarningAndDamagedOnesAnError) {
  output("import model imported");
  const std::string kept = path("imported/model_files/"), whole = io::read_text(kept + "tokenizer.json"),
                    manifest = io::read_text(kept + "files.json");
  const auto expect_failure = [&](const char* command, const char* file) {
    EXPECT_THAT(failure(command), mentions(std::string("model_files/") + file + "'"));
  };
  for (const std::string& damage : {std::string("{}"), std::string(whole.size(), ' ')}) {
    io::write_text_atomically(kept + "tokenizer.json", damage);
    expect_failure("export imported exported", "tokenizer.json");
    expect_failure("info imported", "tokenizer.json");
    output("info imported --no-verify");
  }
  io::write_text_atomically(kept + "tokenizer.json", whole);
  io::write_text_atomically(kept + "files.json", manifest.substr(0, manifest.size() / 2));
  expect_failure("export imported exported", "files.json");
  io::write_text_atomically(kept + "files.json", manifest);
  fs::remove(kept + "tokenizer.json");
  expect_failure("export imported exported", "tokenizer.json");
  fs::create_symlink("/etc/passwd", kept + "tokenizer.json");
  expect_failure("export imported exported", "tokenizer.json");
  fs::remove_all(kept);
  EXPECT_THAT(output("export imported exported"), mentions("warning", "tokenizer"));
  EXPECT_THAT(files("exported"), ElementsAre("config.json", "model.safetensors"));
  // LLaMA 2's ids are what transformers would take.
  EXPECT_EQ(read_hf_config(path("exported")).token_ids.at("eos_token_id"), "null");
}

TEST_F(ProgramFiles, ThatAreNoFilesOrNoSettingsAreNamed) {
  const std::string name = path("model/tokenizer_config.json");
  const auto expect_failure = [&] {
    EXPECT_THAT(failure("import model imported"), mentions("tokenizer_config.json'"));
    fs::remove(name);
  };
  folder_.write("model/tokenizer_config.json", "{\"bos_token\": ");
  expect_failure();
  fs::create_symlink("blobs/0123", name);
  expect_failure();
  ASSERT_EQ(::mkfifo(name.c_str(), 0600), 0);  // which would be waited for
  expect_failure();
  folder_.write("model/tokenizer.json", "");
  fs::resize_file(path("model/tokenizer.json"), std::uintmax_t{257} << 20);
  EXPECT_THAT(failure("import model imported"), mentions("tokenizer.json'", "256 MiB"));
  EXPECT_THAT(files(), ElementsAre("model"));
}

TEST_F(ProgramFiles, WhatAKilledExportLeavesGoesWithTheNextOne) {
  output("import model imported");
  const std::string left = "exported.tmp-" + std::string(32, '0'), mine = "exported.tmp-mine";
  for (const std::string& name : {left, mine}) {
    fs::create_directory(path(name));
    folder_.write(name + "/config.json", "{}");
  }
  output("export imported exported");
  EXPECT_THAT(files(), ElementsAre("exported", mine, "imported", "model"));
}

TEST_F(Program, TheLargerOfBothLengthsIsWritten) {
  config_.positions = 1024;
  config_.shape.rope = {.name = "yarn", .factor = 4, .original_length = 256};
  test::write_small_model(path("model"), config_, DType::f32);
  output("import model imported");
  EXPECT_EQ(output("export imported exported").find("transformers before 4.56"), std::string::npos);
  EXPECT_EQ(read_hf_config(path("exported")).positions, 1024);
  EXPECT_THAT(output("export imported other --positions 37"), mentions("transformers before 4.56"));
}

TEST_F(Program, ATypeThatIsTooSmallIsRefused) {
  write_hf_folder(path("model"), {.config = config_, .type = DType::f32, .read = [](auto, auto values) {
                                    std::fill(values.begin(), values.end(), 1e6f);
                                  }});
  output("import model imported");
  EXPECT_THAT(failure("export imported exported --dtype f16"), mentions("embed_tokens", "f16"));
  EXPECT_THAT(files(), ElementsAre("imported", "model"));
}

TEST_F(Program, AFullDiskLeavesNothing) {
  test::write_small_model(path("model"), config_, DType::bf16);
  EXPECT_THAT(output_of(run_shell("cd " + folder_.path().string() + " && ulimit -f 20 && " +
                                  ANNULUS_WEIGHTS_PROGRAM " import model imported"),
                        1),
              mentions("File too large"));
  EXPECT_THAT(files(), ElementsAre("model"));
}

}  // namespace
}  // namespace annulus::weights
