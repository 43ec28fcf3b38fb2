// annulus-tokens as its users run it, with writers and tokenizers of other programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include <annulus/data/dataset.hpp>
#include <annulus/data/packer.hpp>
#include <annulus/data/verify.hpp>
#include <annulus/io/atomic.hpp>

#include "data/shards.hpp"
#include "support/full_disk.hpp"
#include "support/shell.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::data {
namespace {

namespace fs = std::filesystem;
using Result = annulus::test::ShellResult;
using annulus::test::run_shell;
using annulus::test::TemporaryFolder;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const std::string program = ANNULUS_TOKENS_PROGRAM;
const std::string fixture = ANNULUS_FIXTURE_TEXT;

Result tokens(const std::string& arguments) {
  return run_shell("'" + program + "' " + arguments);
}

std::map<std::string, std::string> shards_in(const fs::path& folder) {
  std::map<std::string, std::string> contents;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".h5") contents[entry.path().filename()] = io::read_text(entry.path());
  }
  return contents;
}

TEST(Tokens, PackInfoVerify) {
  const TemporaryFolder folder;
  const std::string out = folder.file("shards");
  const Result packed = tokens("pack --out " + out + " --shard-tokens 6000 " + fixture);
  EXPECT_EQ(packed.status, 0) << packed.output;
  EXPECT_THAT(packed.output,
              AllOf(HasSubstr("documents         8"), HasSubstr("unigram entropy"),
                    HasSubstr("skipped           0 binary or not UTF-8, 0 empty, 0 bad lines")));

  const Result again = tokens("pack --out " + out + " --shard-tokens 6000 " + fixture);
  EXPECT_EQ(again.status, 0);
  EXPECT_THAT(again.output,
              AllOf(HasSubstr("packed already, nothing to do"), HasSubstr("documents         8")));

  const Result table = tokens("info " + out);
  EXPECT_EQ(table.status, 0);
  EXPECT_THAT(table.output, AllOf(HasSubstr("tokens-000000.h5"), HasSubstr("byte"), HasSubstr("in all")));

  const Result json = tokens("info --json " + out);
  ASSERT_EQ(json.status, 0);
  const nlohmann::json info = nlohmann::json::parse(json.output);
  std::int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(fixture))
    bytes += static_cast<std::int64_t>(entry.file_size());
  EXPECT_EQ(info.at("tokens"), bytes + 8);
  EXPECT_EQ(info.at("documents"), 8);
  EXPECT_GT(info.at("unigram_entropy"),
            2.5);  // English by letters: about 2.9 nats, with signs and capitals 3
  EXPECT_LT(info.at("unigram_entropy"), 3.5);
  EXPECT_EQ(info.at("files").at(0).at("vocabulary"), 257);
  EXPECT_FALSE(
      nlohmann::json::parse(tokens("info --quick --json " + out).output).contains("unigram_entropy"));

  const Result verified = tokens("verify " + out);
  EXPECT_EQ(verified.status, 0);
  EXPECT_THAT(verified.output, AllOf(HasSubstr("ok"), Not(HasSubstr("bad"))));
}

TEST(Tokens, VerifyTellsAllBadShardsAndFails) {
  const TemporaryFolder folder;
  test::RawShard{}.write(folder.file("a.h5"));
  test::RawShard<> bad;
  bad.tokens[1] = 400;
  bad.write(folder.file("b.h5"));
  folder.write("c.h5", "junk");
  const Result result = tokens("verify " + folder.path().string());
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("ok   " + folder.file("a.h5")), HasSubstr("offset 1"), HasSubstr("id 400"),
                    HasSubstr("c.h5' is not an HDF5 file"), HasSubstr("2 bad shards")));
  EXPECT_EQ(tokens("verify " + folder.file("none.h5")).status, 1);
}

TEST(Tokens, BadCommandLines) {
  EXPECT_NE(tokens("").status, 0);
  EXPECT_NE(tokens("pack").status, 0);
  EXPECT_NE(tokens("unpack x").status, 0);
  EXPECT_EQ(tokens("--help").status, 0);
  EXPECT_THAT(tokens("pack --help").output, AllOf(HasSubstr("--shard-tokens"), HasSubstr("--extensions")));
  const TemporaryFolder folder;
  const Result tokenizer = tokens("pack --tokenizer bpe --out " + folder.file("o") + " " + fixture);
  EXPECT_EQ(tokenizer.status, 1);
  EXPECT_THAT(tokenizer.output, HasSubstr("annulus-tokens: unknown tokenizer 'bpe'"));
}

TEST(Tokens, ExtensionsSelectFiles) {
  const TemporaryFolder folder;
  fs::create_directories(folder.path() / "in");
  for (const char* name : {"in/a.hpp", "in/b.cpp", "in/c.txt"}) folder.write(name, name);
  fs::create_directories(folder.path() / "more");
  folder.write("more/d.hpp", "d");
  // Inputs before and behind the option.
  const std::string in = folder.file("in"), more = folder.file("more"), out = folder.file("o");
  for (const std::string& arguments : {"--extensions .hpp,.cpp " + in + " " + more + " --out " + out,
                                       in + " " + more + " --extensions .hpp,.cpp --out " + out}) {
    fs::remove_all(out);
    const Result result = tokens("pack " + arguments);
    EXPECT_EQ(result.status, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr("documents         3")) << arguments;
  }
}

TEST(Tokens, NotesAreToldOnceAndCounted) {
  const TemporaryFolder folder;
  fs::create_directories(folder.path() / "in");
  folder.write("in/a.txt", "text");
  for (int i = 0; i < 30; ++i) folder.write("in/" + std::to_string(i) + ".bin", "\xff");
  const Result result = tokens("pack --out " + folder.file("o") + " " + folder.file("in"));
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("is passed over: not UTF-8 at byte 1"), HasSubstr("and 10 more"),
                                   HasSubstr("30 binary or not UTF-8, 0 empty, 0 bad lines")));
  EXPECT_EQ(tokens("pack --bad-lines perhaps --out " + folder.file("p") + " " + folder.file("in")).status, 1);
  const Result served = tokens("pack --served-tokenizer x --model " + folder.file("in/a.txt") + " --out " +
                               folder.file("p") + " " + folder.file("in"));
  EXPECT_EQ(served.status, 1);
  EXPECT_THAT(served.output, HasSubstr("--served-tokenizer"));
}

TEST(Tokens, HiddenFilesAmongShardsArePassedOver) {
  const TemporaryFolder folder;
  ASSERT_EQ(tokens("pack --out " + folder.file("o") + " " + fixture).status, 0);
  folder.write("o/._tokens-000000.h5", "what another system keeps beside files");
  folder.write("o/.tokens-000001.h5", "hidden");
  EXPECT_EQ(tokens("verify " + folder.file("o")).status, 0);
  EXPECT_EQ(tokens("info " + folder.file("o")).status, 0);
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

TEST(Tokens, PackGoesOnAfterAKill) {
  const TemporaryFolder folder;
  fs::create_directories(folder.path() / "in");
  for (int i = 10; i < 35; ++i)
    folder.write("in/" + std::to_string(i), std::string(300, static_cast<char>('A' + i)));
  const std::string arguments = " --shard-tokens 400 " + folder.file("in");
  ASSERT_EQ(tokens("pack --out " + folder.file("whole") + arguments).status, 0);
  fs::path output;
  bool killed = false;
  for (int attempt = 0; attempt < 5 && !killed; ++attempt) {  // a very fast disk may let it finish first
    output = folder.path() / ("killed" + std::to_string(attempt));
    killed = pack_and_kill(folder.file("in"), output);
  }
  ASSERT_TRUE(killed);
  const auto before = shards_in(output);
  ASSERT_GE(before.size(), 2u);
  ASSERT_LT(before.size(), 25u);
  const Result resumed = tokens("pack --out " + output.string() + arguments);
  EXPECT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr("shards of an interrupted run"));
  EXPECT_EQ(shards_in(output), shards_in(folder.path() / "whole"));
  for (const auto& entry : fs::directory_iterator(output)) {
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr(".tmp-")));
  }
}

TEST(Tokens, TwoPacksIntoOneFolder) {
  const TemporaryFolder folder;
  const std::string out = folder.file("o");
  ASSERT_EQ(tokens("pack --out " + out + " " + fixture).status, 0);
  const Result locked =
      run_shell("flock " + out + "/pack.lock '" + program + "' pack --out " + out + " " + fixture);
  EXPECT_EQ(locked.status, 1);
  EXPECT_THAT(locked.output, HasSubstr("another annulus-tokens pack"));
}

TEST(Tokens, FileSizeLimitIsAnErrorAndCanBeResumed) {
  const TemporaryFolder folder;
  const std::string arguments = "pack --shard-tokens 5000 --out " + folder.file("o") + " " + fixture;
  const Result limited =
      run_shell("ulimit -f 8; '" + program + "' " + arguments);  // 512-byte or 1024-byte units
  EXPECT_EQ(limited.status, 1);
  EXPECT_THAT(limited.output, AllOf(HasSubstr("annulus-tokens: cannot write"), HasSubstr("File too large")));
  EXPECT_EQ(tokens(arguments).status, 0);
}

TEST(Tokens, FullDiskIsAnErrorAndCanBeResumed) {
  const annulus::test::SmallFileSystem disk(40000);
  if (!disk.mounted()) GTEST_SKIP() << "this process may not mount";
  const TemporaryFolder folder;
  const std::string arguments = " --shard-tokens 4000 " + fixture;
  const Result full = tokens("pack --out " + (disk.path() / "o").string() + arguments);
  EXPECT_EQ(full.status, 1);
  EXPECT_THAT(full.output, AllOf(HasSubstr("No space left on device"), HasSubstr("free some space")));
  const std::size_t kept = shards_in(disk.path() / "o").size();
  EXPECT_GE(kept, 1u);
  fs::copy(disk.path() / "o", folder.path() / "o", fs::copy_options::recursive);  // a larger disk
  const Result resumed = tokens("pack --out " + folder.file("o") + arguments);
  EXPECT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_THAT(resumed.output, HasSubstr("shards of an interrupted run"));
  EXPECT_EQ(tokens("verify " + folder.file("o")).status, 0);
}

/// The Python example of docs/formats/token-shards.md.
std::string python_example() {
  const std::string text = io::read_text(ANNULUS_TOKEN_SHARDS_FORMAT);
  const std::string open = "```python\n";
  const auto begin = text.find(open);
  const auto end = text.find("```", begin + open.size());
  if (begin == std::string::npos || end == std::string::npos) return "";
  return text.substr(begin + open.size(), end - begin - open.size());
}

TEST(Python, ExampleOfTheFormatWritesAShard) {
  if (run_shell("/usr/bin/python3 -c 'import h5py'").status != 0)
    GTEST_SKIP() << "python3-h5py is not installed";
  const std::string example = python_example();
  ASSERT_THAT(example, HasSubstr("h5py.File"));
  EXPECT_LE(std::count(example.begin(), example.end(), '\n'), 15);
  const TemporaryFolder folder;
  folder.write("example.py", example);
  const Result result = run_shell("cd " + folder.path().string() + " && /usr/bin/python3 example.py");
  ASSERT_EQ(result.status, 0) << result.output;
  const Result verified = tokens("verify " + folder.file("tokens-000000.h5"));
  EXPECT_EQ(verified.status, 0) << verified.output;

  const fs::path paths[] = {folder.path()};
  const TokenDataset dataset(paths, 20);
  EXPECT_EQ(dataset.documents(), 3);
  const Sequence sequence = dataset.read(0, {0, 0, 1, 20, 0, 20});
  EXPECT_EQ(make_byte_tokenizer()->decode(sequence.tokens), "A first document.A ");
  EXPECT_THAT(sequence.document_starts, ElementsAre(0, 18));
  EXPECT_EQ(sequence.targets[17], ignored_target);
}

TEST(Python, ReadsWhatPackWrote) {
  if (run_shell("/usr/bin/python3 -c 'import h5py'").status != 0)
    GTEST_SKIP() << "python3-h5py is not installed";
  const TemporaryFolder folder;
  ASSERT_EQ(tokens("pack --out " + folder.file("o") + " " + fixture).status, 0);
  folder.write("read.py", R"(
import h5py, sys, zlib
with h5py.File(sys.argv[1]) as file:
    tokens, documents, a = file["tokens"][:], file["documents"][:], dict(file.attrs)
assert a["format"] == "annulus-tokens" and a["version"] == 1 and a["tokenizer"] == "byte", a
assert a["checksum"] == zlib.crc32(documents.tobytes(), zlib.crc32(tokens.tobytes())), a
assert tokens.dtype == "<u2" and documents.dtype == "<u8"
print(bytes(list(tokens[: int(documents[1]) - 1])).decode().splitlines()[0])
)");
  const Result result =
      run_shell("/usr/bin/python3 " + folder.file("read.py") + " " + folder.file("o/tokens-000000.h5"));
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_EQ(result.output, "How a swarm chooses a house\n");
}

class SentencePiece : public testing::Test {
 protected:
  /// A model that keeps every character; some options change it.
  void train(const std::string& more = "") {
    if (run_shell("command -v spm_train").status != 0)
      GTEST_SKIP() << "spm_train (package sentencepiece) is not installed";
    const Result result = run_shell(
        "cd " + folder_.path().string() + " && cat " + fixture +
        "/*.txt > all.txt && spm_train --input=all.txt " +
        "--model_prefix=tiny --vocab_size=400 --model_type=bpe --byte_fallback=true "
        "--character_coverage=0.99 " +
        "--normalization_rule_name=identity --remove_extra_whitespaces=false --add_dummy_prefix=false " +
        "--max_sentence_length=100000 --num_threads=1 " + more);
    ASSERT_EQ(result.status, 0) << result.output;
    model_ = folder_.file("tiny.model");
  }

  TemporaryFolder folder_;
  std::string model_;
};

TEST(Pack, NamesTheOptionThatIsMissingOrMeant) {
  const TemporaryFolder folder;
  const std::string out = " --out " + folder.file("out") + " ";
  EXPECT_THAT(tokens("pack --tokenizer sentencepiece" + out + fixture).output, HasSubstr("--model FILE"));
  EXPECT_THAT(tokens("pack --outdir " + folder.file("out") + " " + fixture).output,
              HasSubstr("--outdir: did you mean --out?"));
  EXPECT_THAT(tokens("pakk" + out + fixture).output,
              HasSubstr("there is no command 'pakk'; did you mean 'pack'?"));
}

TEST_F(SentencePiece, RoundTrip) {
  train();
  if (IsSkipped()) return;
  const auto tokenizer = make_tokenizer("sentencepiece", model_);
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
  const std::string out = folder_.file("o");
  const Result packed =
      tokens("pack --tokenizer sentencepiece --model " + model_ + " --out " + out + " " + fixture);
  ASSERT_EQ(packed.status, 0) << packed.output;
  EXPECT_EQ(tokens("verify " + out).status, 0);
  const TokenShard shard = TokenShard::open(out + "/tokens-000000.h5");
  EXPECT_EQ(shard.header().type, DType::u16);
  const std::vector<std::int64_t> documents = shard.documents();
  ASSERT_EQ(documents.size(), 8u);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(documents[1]));
  shard.read(0, ids);
  EXPECT_EQ(ids.back(), 2);
  fs::remove(model_);  // the shard is enough
  EXPECT_EQ(shard.tokenizer()->decode(ids), io::read_text(fixture + "/bees.txt"));
}

TEST_F(SentencePiece, OtherModelInTheSameFolderIsAnError) {
  train();
  if (IsSkipped()) return;
  const std::string arguments =
      "pack --tokenizer sentencepiece --model " + model_ + " --out " + folder_.file("o") + " ";
  ASSERT_EQ(tokens(arguments + fixture).status, 0);
  train("--split_digits=true");
  const Result other = tokens(arguments + fixture);
  EXPECT_EQ(other.status, 1);
  EXPECT_THAT(other.output, AllOf(HasSubstr("other tokenizer"), HasSubstr("crc32:")));
}

TEST_F(SentencePiece, DamagedModelInAShardIsFound) {
  train();
  if (IsSkipped()) return;
  const std::string out = folder_.file("o");
  ASSERT_EQ(
      tokens("pack --tokenizer sentencepiece --model " + model_ + " --out " + out + " " + fixture).status, 0);
  std::string bytes = io::read_text(out + "/tokens-000000.h5");
  const auto at = bytes.find(io::read_text(model_).substr(100, 200));
  ASSERT_NE(at, std::string::npos);
  bytes[at + 20] ^= 1;
  const Result result = tokens("verify " + folder_.write("bad.h5", bytes));
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.output, HasSubstr("SentencePiece"));
}

/// The table of replaced characters of a model is followed by the library without a bound.
TEST_F(SentencePiece, ModelWithADamagedTableIsAnError) {
  train("--normalization_rule_name=nmt_nfkc");
  if (IsSkipped()) return;
  const std::string arguments = "pack --tokenizer sentencepiece --model " + model_ + " --out ";
  ASSERT_EQ(tokens(arguments + folder_.file("sound") + " " + fixture).status, 0);
  std::string bytes = io::read_text(model_);
  std::fill(bytes.end() - 200'000, bytes.end() - 100'000, '\xff');
  folder_.write("tiny.model", bytes);
  const Result result = tokens(arguments + folder_.file("o") + " " + fixture);
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.output, AllOf(HasSubstr(model_), HasSubstr("damaged")));
  // In a shard whose checksums fit.
  const std::string shard = folder_.file("sound/tokens-000000.h5");
  const std::string edit =
      "import h5py, numpy, sys, zlib\n"
      "with h5py.File(sys.argv[1], 'r+') as f:\n"
      "    model = open(sys.argv[2], 'rb').read()\n"
      "    f['tokenizer_model'][:] = numpy.frombuffer(model, 'u1')\n"
      "    del f.attrs['strings_crc32']\n"
      "    f.attrs['fingerprint'] = f'crc32:{zlib.crc32(model):08x}'\n";
  if (run_shell("/usr/bin/python3 -c 'import h5py'").status != 0) return;
  ASSERT_EQ(
      run_shell("/usr/bin/python3 " + folder_.write("edit.py", edit) + " " + shard + " " + model_).status, 0);
  const Result verified = tokens("verify " + shard);
  EXPECT_EQ(verified.status, 1);
  EXPECT_THAT(verified.output, AllOf(HasSubstr(shard), HasSubstr("damaged")));
}

TEST_F(SentencePiece, ModelWithoutEndIsAnError) {
  train("--eos_id=-1");
  if (IsSkipped()) return;
  const Result result = tokens("pack --tokenizer sentencepiece --model " + model_ + " --out " +
                               folder_.file("o") + " " + fixture);
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.output, AllOf(HasSubstr("has no </s>"), HasSubstr("eos_id")));
}

}  // namespace
}  // namespace annulus::data
