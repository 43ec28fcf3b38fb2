// annulus-tokens as its users run it, with writers and tokenizers of other programs.
#include <signal.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "support/full_disk.hpp"
#include "support/shell.hpp"
#include "training/data/packing/packer.hpp"

namespace annulus::data {
namespace {

using Result = annulus::test::ShellResult;
using annulus::test::run_shell;
using test::RawShard;
using test::shards_in;
using testing::Not;

const std::string program = ANNULUS_TOKENS_PROGRAM;
const std::string fixture = ANNULUS_FIXTURE_TEXT;
constexpr const char* python = "/usr/bin/python3 ";

bool has_h5py() {
  return run_shell(std::string(python) + "-c 'import h5py'").status == 0;
}

class Tokens : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.file(name); }
  Result tokens(const std::string& arguments) const {
    return run_shell("cd " + folder_.path().string() + " && '" + program + "' " + arguments);
  }
  /// Output of a command that ends well.
  std::string output(const std::string& arguments) const {
    const Result result = tokens(arguments);
    EXPECT_EQ(result.status, 0) << arguments << ": " << result.output;
    return result.output;
  }
  /// Output of a command that ends with status 1.
  std::string failure(const std::string& arguments) const {
    const Result result = tokens(arguments);
    EXPECT_EQ(result.status, 1) << arguments << ": " << result.output;
    return result.output;
  }
  /// Files of the folder "in".
  void add(const std::string& name, std::string_view content) const {
    fs::create_directories(folder_.path() / "in");
    folder_.write("in/" + name, content);
  }

  annulus::test::TemporaryFolder folder_;
};

TEST_F(Tokens, PackInfoVerify) {
  const std::string pack = "pack --out shards --shard-tokens 6000 " + fixture;
  EXPECT_THAT(output(pack), mentions("documents         8", "unigram entropy",
                                     "0 binary or not UTF-8, 0 empty, 0 bad lines"));
  EXPECT_THAT(output(pack), mentions("packed already", "documents         8"));
  EXPECT_THAT(output("info shards"), mentions("tokens-000000.h5", "byte", "in all"));

  const nlohmann::json info = nlohmann::json::parse(output("info --json shards"));
  std::int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(fixture))
    bytes += static_cast<std::int64_t>(entry.file_size());
  EXPECT_EQ(info.at("tokens"), bytes + 8);
  EXPECT_EQ(info.at("documents"), 8);
  // English by letters: about 2.9 nats, with signs and capitals 3.
  EXPECT_GT(info.at("unigram_entropy"), 2.5);
  EXPECT_LT(info.at("unigram_entropy"), 3.5);
  EXPECT_EQ(info.at("files").at(0).at("vocabulary"), 257);
  EXPECT_FALSE(nlohmann::json::parse(output("info --quick --json shards")).contains("unigram_entropy"));
  for (const char* twice : {"info shards shards", "info --quick shards ./shards/tokens-000000.h5"})
    EXPECT_THAT(failure(twice), mentions("tokens-000000.h5", "give each shard once"));
  const std::string verified = output("verify shards");
  EXPECT_THAT(verified, mentions("ok"));
  EXPECT_THAT(verified, Not(mentions("bad")));
}

TEST_F(Tokens, InfoTellsOfLossMasks) {
  RawShard masked;
  masked.loss_mask = {0, 1, 1, 0, 0};
  masked.write(path("a.h5"));
  RawShard{}.write(path("b.h5"));
  EXPECT_THAT(output("info ."), mentions("1 of 2 shards; 7 tokens"));
  EXPECT_THAT(output("info --quick ."), mentions("1 of 2 shards"));
  const nlohmann::json info = nlohmann::json::parse(output("info --json ."));
  EXPECT_EQ(info.at("counted_tokens"), 7);
  EXPECT_EQ(info.at("files").at(0).at("loss_mask"), true);
  EXPECT_EQ(info.at("files").at(1).at("loss_mask"), false);
  masked.loss_mask_checksum = 1;
  masked.write(path("a.h5"));
  EXPECT_THAT(failure("verify ."), mentions("ok   ./b.h5", "'./a.h5'", "loss_mask"));
}

TEST_F(Tokens, VerifyTellsAllBadShardsAndFails) {
  RawShard{}.write(path("a.h5"));
  RawShard<> bad;
  bad.tokens[1] = 400;
  bad.write(path("b.h5"));
  folder_.write("c.h5", "junk");
  EXPECT_THAT(failure("verify " + folder_.path().string()),
              mentions("ok   " + path("a.h5"), "b.h5'", "offset 1", "id 400", "c.h5'", "2 bad shards"));
  failure("verify none.h5");
}

TEST_F(Tokens, BadCommandLines) {
  for (const char* arguments : {"", "pack", "unpack x"}) EXPECT_NE(tokens(arguments).status, 0);
  output("--help");
  EXPECT_THAT(output("pack --help"), mentions("--shard-tokens", "--extensions"));
  EXPECT_THAT(failure("pack --tokenizer bpe --out o " + fixture), mentions("annulus-tokens: ", "'bpe'"));
  EXPECT_THAT(tokens("pack --tokenizer sentencepiece --out o " + fixture).output, mentions("--model FILE"));
  EXPECT_THAT(tokens("pack --outdir o " + fixture).output, mentions("--outdir", "--out?"));
  EXPECT_THAT(tokens("pakk --out o " + fixture).output, mentions("'pakk'", "'pack'"));
}

TEST_F(Tokens, ExtensionsSelectFiles) {
  for (const char* name : {"a.hpp", "b.cpp", "c.txt"}) add(name, name);
  fs::create_directories(folder_.path() / "more");
  folder_.write("more/d.hpp", "d");
  // Inputs before and behind the option.
  for (const char* arguments :
       {"--extensions .hpp,.cpp in more --out o", "in more --extensions .hpp,.cpp --out o"}) {
    fs::remove_all(path("o"));
    EXPECT_THAT(output(std::string("pack ") + arguments), mentions("documents         3")) << arguments;
  }
}

TEST_F(Tokens, NotesAreToldOnceAndCounted) {
  add("a.txt", "text");
  for (int i = 0; i < 30; ++i) add(std::to_string(i) + ".bin", "\xff");
  EXPECT_THAT(output("pack --out o in"),
              mentions("byte 1", "and 10 more", "30 binary or not UTF-8, 0 empty, 0 bad lines"));
  failure("pack --bad-lines perhaps --out p in");
  EXPECT_THAT(failure("pack --served-tokenizer x --model in/a.txt --out p in"),
              mentions("--served-tokenizer"));
}

TEST_F(Tokens, HiddenFilesAmongShardsArePassedOver) {
  output("pack --out o " + fixture);
  folder_.write("o/._tokens-000000.h5", "what another system keeps beside files");
  folder_.write("o/.tokens-000001.h5", "hidden");
  output("verify o");
  output("info o");
}

/// Starts a pack, kills it once a shard is there; true when it was killed in the middle.
bool pack_and_kill(const std::string& input, const fs::path& output) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl(program.c_str(), program.c_str(), "pack", "--out", output.c_str(), "--shard-tokens", "400",
            input.c_str(), nullptr);
    ::_exit(127);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!fs::exists(output / "tokens-000001.h5") && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

TEST_F(Tokens, PackGoesOnAfterAKill) {
  for (int i = 10; i < 35; ++i) add(std::to_string(i), std::string(300, static_cast<char>('A' + i)));
  const std::string arguments = " --shard-tokens 400 " + path("in");
  output("pack --out whole" + arguments);
  fs::path out;
  bool killed = false;
  for (int attempt = 0; attempt < 50 && !killed; ++attempt) {  // it may finish before it is killed
    out = folder_.path() / ("killed" + std::to_string(attempt));
    killed = pack_and_kill(path("in"), out) && shards_in(out).size() < 25;
  }
  ASSERT_TRUE(killed);
  ASSERT_GE(shards_in(out).size(), 2u);
  EXPECT_THAT(output("pack --out " + out.string() + arguments), mentions("interrupted"));
  EXPECT_EQ(shards_in(out), shards_in(folder_.path() / "whole"));
  for (const auto& entry : fs::directory_iterator(out))
    EXPECT_THAT(entry.path().filename().string(), Not(mentions(".tmp-")));
}

TEST_F(Tokens, TwoPacksIntoOneFolder) {
  output("pack --out o " + fixture);
  EXPECT_THAT(output_of(run_shell("flock " + path("o/pack.lock") + " '" + program + "' pack --out " +
                                  path("o") + " " + fixture),
                        1),
              mentions("'" + path("o") + "'", "pack.lock"));
}

TEST_F(Tokens, FileSizeLimitIsAnErrorAndCanBeResumed) {
  const std::string arguments = "pack --shard-tokens 5000 --out " + path("o") + " " + fixture;
  const Result limited =
      run_shell("ulimit -f 8; '" + program + "' " + arguments);  // 512-byte or 1024-byte units
  EXPECT_EQ(limited.status, 1);
  EXPECT_THAT(limited.output, mentions("annulus-tokens: ", "File too large"));
  output(arguments);
}

TEST_F(Tokens, FullDiskIsAnErrorAndCanBeResumed) {
  const annulus::test::SmallFileSystem disk(40000);
  if (!disk.mounted()) GTEST_SKIP() << "this process may not mount";
  const std::string arguments = " --shard-tokens 4000 " + fixture;
  EXPECT_THAT(failure("pack --out " + (disk.path() / "o").string() + arguments),
              mentions("No space left on device"));
  EXPECT_GE(shards_in(disk.path() / "o").size(), 1u);
  fs::copy(disk.path() / "o", path("o"), fs::copy_options::recursive);  // a larger disk
  EXPECT_THAT(output("pack --out o" + arguments), mentions("interrupted"));
  output("verify o");
}

/// The first Python example behind a heading of docs/formats/token-shards.md.
std::string python_example(std::string_view heading) {
  const std::string text = io::read_text(ANNULUS_TOKEN_SHARDS_FORMAT);
  const auto fence = text.find("```python", text.find(heading)), begin = text.find('\n', fence) + 1;
  const auto end = text.find("```", begin);
  return fence == std::string::npos || end == std::string::npos ? "" : text.substr(begin, end - begin);
}

TEST_F(Tokens, PythonExampleOfTheFormatWritesAShard) {
  if (!has_h5py()) GTEST_SKIP() << "python3-h5py is not installed";
  const std::string example = python_example("## Writing shards from Python");
  ASSERT_THAT(example, mentions("h5py.File"));
  EXPECT_LE(std::count(example.begin(), example.end(), '\n'), 15);
  folder_.write("example.py", example);
  output_of(run_shell("cd " + folder_.path().string() + " && " + python + "example.py"));
  output("verify tokens-000000.h5");

  const std::string more = python_example("### Tokens that count");
  ASSERT_THAT(more, mentions("loss_mask"));
  folder_.write("more.py", more);
  output_of(run_shell("cd " + folder_.path().string() + " && " + python + "more.py"));
  EXPECT_THAT(output("info tokens-000000.h5"), mentions("loss mask"));
  output("verify tokens-000000.h5");

  const TokenDataset dataset = test::dataset_of(folder_, 20);
  EXPECT_EQ(dataset.documents(), 3);
  const Sequence sequence = dataset.read(0, {0, 0, 1, 20, 0, 20});
  EXPECT_EQ(make_byte_tokenizer()->decode(sequence.tokens), "A first document.A ");
  EXPECT_THAT(sequence.document_starts, ElementsAre(0, 18));
  EXPECT_EQ(sequence.targets[17], ignored_target);
}

TEST_F(Tokens, PythonExampleOfTheFormatReadsWhatPackWrote) {
  if (!has_h5py()) GTEST_SKIP() << "python3-h5py is not installed";
  output("pack --out o " + fixture);
  folder_.write("read.py", python_example("## Reading a shard from Python") +
                               "assert tokens.dtype == '<u2' and starts.dtype == '<u8'\n");
  EXPECT_THAT(output_of(run_shell(python + path("read.py") + " " + path("o/tokens-000000.h5"))),
              testing::StartsWith("2477 tokens: How a swarm chooses a house\n"));
}

class SentencePiece : public Tokens {
 protected:
  /// Trains tiny.model, which keeps every character; some options change it.
  void train(const std::string& more = "") {
    if (run_shell("command -v spm_train").status != 0)
      GTEST_SKIP() << "spm_train (package sentencepiece) is not installed";
    output_of(run_shell(
        "cd " + folder_.path().string() + " && cat " + fixture +
        "/*.txt > all.txt && spm_train --input=all.txt " +
        "--model_prefix=tiny --vocab_size=400 --model_type=bpe "
        "--byte_fallback=true --character_coverage=0.99 " +
        "--normalization_rule_name=identity --remove_extra_whitespaces=false --add_dummy_prefix=false " +
        "--max_sentence_length=100000 --num_threads=1 " + more));
  }
  static std::string pack(const std::string& out) {
    return "pack --tokenizer sentencepiece --model tiny.model --out " + out + " " + fixture;
  }
};

TEST_F(SentencePiece, RoundTrip) {
  train();
  if (IsSkipped()) return;
  const auto tokenizer = make_tokenizer("sentencepiece", path("tiny.model"));
  EXPECT_EQ(tokenizer->identity().vocabulary, 400);
  EXPECT_EQ(tokenizer->identity().end_of_document, 2);  // spm_train's </s>
  EXPECT_THAT(tokenizer->identity().fingerprint, testing::MatchesRegex("crc32:[0-9a-f]{8}"));
  for (const auto& entry : fs::directory_iterator(fixture)) {
    const std::string text = io::read_text(entry.path());
    std::vector<std::int32_t> ids;
    tokenizer->encode(text, ids);
    EXPECT_LT(ids.size(), text.size());
    ids.push_back(2);
    EXPECT_EQ(tokenizer->decode(ids), text);
  }
}

TEST_F(SentencePiece, ShardsCarryTheModel) {
  train();
  if (IsSkipped()) return;
  output(pack("o"));
  output("verify o");
  const TokenShard shard = TokenShard::open(path("o/tokens-000000.h5"));
  EXPECT_EQ(shard.header().type, DType::u16);
  const std::vector<std::int64_t> documents = shard.documents();
  ASSERT_EQ(documents.size(), 8u);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(documents[1]));
  shard.read(0, ids);
  EXPECT_EQ(ids.back(), 2);
  fs::remove(path("tiny.model"));  // the shard is enough
  EXPECT_EQ(shard.tokenizer()->decode(ids), io::read_text(fixture + "/bees.txt"));
}

TEST_F(SentencePiece, OtherModelInTheSameFolderIsAnError) {
  train();
  if (IsSkipped()) return;
  output(pack("o"));
  train("--split_digits=true");
  EXPECT_THAT(failure(pack("o")), mentions("tokenizer", "crc32:"));
}

TEST_F(SentencePiece, DamagedModelInAShardIsFound) {
  train();
  if (IsSkipped()) return;
  output(pack("o"));
  std::string bytes = io::read_text(path("o/tokens-000000.h5"));
  const auto at = bytes.find(io::read_text(path("tiny.model")).substr(100, 200));
  ASSERT_NE(at, std::string::npos);
  bytes[at + 20] ^= 1;
  folder_.write("bad.h5", bytes);
  EXPECT_THAT(failure("verify bad.h5"), mentions("bad.h5", "SentencePiece"));
}

/// The table of replaced characters of a model is followed by the library without a bound.
TEST_F(SentencePiece, ModelWithADamagedTableIsAnError) {
  train("--normalization_rule_name=nmt_nfkc");
  if (IsSkipped()) return;
  output(pack("sound"));
  std::string bytes = io::read_text(path("tiny.model"));
  std::fill(bytes.end() - 200'000, bytes.end() - 100'000, '\xff');
  folder_.write("tiny.model", bytes);
  EXPECT_THAT(failure(pack("o")), mentions("tiny.model", "damaged"));
  if (!has_h5py()) return;
  // In a shard whose checksums fit.
  folder_.write("edit.py",
                "import h5py, numpy, sys, zlib\n"
                "with h5py.File('sound/tokens-000000.h5', 'r+') as f:\n"
                "    model = open('tiny.model', 'rb').read()\n"
                "    f['tokenizer_model'][:] = numpy.frombuffer(model, 'u1')\n"
                "    del f.attrs['strings_crc32']\n"
                "    f.attrs['fingerprint'] = f'crc32:{zlib.crc32(model):08x}'\n");
  ASSERT_EQ(run_shell("cd " + folder_.path().string() + " && " + python + "edit.py").status, 0);
  EXPECT_THAT(failure("verify sound/tokens-000000.h5"), mentions("sound/tokens-000000.h5", "damaged"));
}

TEST_F(SentencePiece, ModelWithoutEndIsAnError) {
  train("--eos_id=-1");
  if (IsSkipped()) return;
  EXPECT_THAT(failure(pack("o")), mentions("tiny.model", "</s>"));
}

}  // namespace
}  // namespace annulus::data
