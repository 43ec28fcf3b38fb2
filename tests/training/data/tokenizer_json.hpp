#pragma once

#include <nlohmann/json.hpp>

#include "support/shell.hpp"
#include "training/data/packing/packer.hpp"

namespace annulus::data {

using annulus::test::run_shell;
using annulus::test::ShellResult;

inline constexpr const char* make_tokenizers = R"(
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
plain = Tokenizer(models.BPE(vocabulary, []))
plain.pre_tokenizer = byte_level
plain.add_special_tokens(["<|endoftext|>", "<|bos|>"])  # 256, 257
plain.add_tokens([AddedToken("<tool>", special=False)])  # 258
plain.save("plain.json")
plain.post_processor = processors.TemplateProcessing(
    single="<|bos|> $A <|endoftext|>", special_tokens=[("<|bos|>", 257), ("<|endoftext|>", 256)])
plain.save("bos.json")
words = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1, "a": 2}, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
words.add_special_tokens(["<unk>", "</s>"])
words.save("words.json")
)";

/// A Python that has the package; empty where there is none.
inline std::string python_with_tokenizers() {
  for (const std::string python : {"python3", "/usr/bin/python3"})
    if (run_shell(python + " -c 'import tokenizers'").status == 0) return python;
  return "";
}

class TokenizerJson : public testing::Test {
 protected:
  void SetUp() override {
    if (python_.empty())
      GTEST_SKIP() << "NOT TESTED: pack_tokenizer_json.py, "
                      "as no Python here has the package tokenizers (pip install tokenizers)";
    folder_.write("make.py", make_tokenizers);
    output_of(run_shell("cd " + folder_.path().string() + " && " + python_ + " make.py"));
    fs::create_directories(folder_.path() / "bin");
    fs::create_symlink(ANNULUS_TOKENS_PROGRAM, folder_.path() / "bin/annulus-tokens");
  }

  /// Runs the script with a tokenizer of make_tokenizers and further arguments.
  ShellResult pack(const std::string& tokenizer, const std::string& arguments,
                   const std::string& end = "<|endoftext|>") const {
    return run_shell("cd " + folder_.path().string() + " && PATH=$PWD/bin:$PATH " + python_ +
                     " " ANNULUS_PACK_TOKENIZER_JSON " " + tokenizer + " '" + end + "' " + arguments);
  }
  std::string add(const std::string& name, std::string_view content) const {
    fs::create_directories((folder_.path() / "in" / name).parent_path());
    return folder_.write("in/" + name, content);
  }

  /// Documents of the shards of folder `out`; ids of bytes are shown as these, others as <258>.
  std::vector<std::string> documents_in(const std::string& out) const {
    const auto table = nlohmann::json::parse(io::read_text(folder_.path() / "plain.json"))["model"]["vocab"];
    std::vector<std::string> texts, names(256);
    for (const auto& [name, id] : table.items()) names[id.get<std::size_t>()] = name;
    test::for_each_document(
        folder_.path() / out, [&](const TokenShard&, const std::vector<std::int32_t>& ids) {
          std::string text;
          for (const std::int32_t id : ids)
            text += id < 256 ? names[static_cast<std::size_t>(id)] : "<" + std::to_string(id) + ">";
          texts.push_back(text);
        });
    return texts;
  }

  annulus::test::TemporaryFolder folder_;
  static inline const std::string python_ = python_with_tokenizers();
};

}  // namespace annulus::data
