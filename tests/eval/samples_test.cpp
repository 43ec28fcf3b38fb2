// What annulus-eval make is made of: questions, texts around them, folders of samples, files of benchmarks.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "eval/samples/benchmark_files.hpp"
#include "eval/samples/sample_set.hpp"
#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"
#include "training/data/dataset.hpp"
#include "training/data/verify.hpp"
#include "training/io/atomic.hpp"

namespace annulus::eval {
namespace {

using annulus::test::FolderTest;
using testing::ElementsAre;

const std::shared_ptr<const data::Tokenizer> bytes = data::make_byte_tokenizer();

constexpr std::array all_kinds{Kind::needle,    Kind::keys,         Kind::values,        Kind::queries,
                               Kind::variables, Kind::common_words, Kind::frequent_words};

Sample make(const SampleOrder& order, std::uint64_t seed, const KindOptions& options = {}) {
  const PieceEncoder encode(*bytes);
  Filler filler = Filler::generated(encode);
  Random random{seed};
  return compose(order, options, encode, filler, random);
}

/// The text of the sample up to the question, and the question.
std::pair<std::string, std::string> taken_apart(const Sample& sample) {
  const std::string prompt = bytes->decode(std::span(sample.ids).first(std::size_t(sample.answer_begin)));
  const std::size_t question = prompt.find("Question: ");
  return {prompt.substr(0, question), prompt.substr(question)};
}

std::vector<std::string> matches(const std::string& text, const std::string& pattern) {
  std::vector<std::string> found;
  const std::regex regex(pattern);
  for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at)
    found.push_back(at->str(1));
  return found;
}

std::string joined(const std::vector<std::string>& texts) {
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string number_of(const std::string& text, const std::string& key) {
  return joined(matches(text, "number for " + key + " is (\\d+)"));
}

/// Whole words of a list, from the most frequent on.
std::vector<std::string> by_frequency(const std::string& text) {
  std::map<std::string, int> counts;
  std::istringstream stream(text);
  std::string word;
  if (text[0] != ' ') stream >> word;  // the first one may be cut
  while (stream >> word) ++counts[word];
  std::vector<std::string> words;
  for (const auto& [name, count] : counts) words.push_back(name);
  std::ranges::stable_sort(words, std::greater(), [&](const std::string& name) { return counts[name]; });
  return words;
}

/// The answer that the text of a sample gives, found by reading it.
std::string answer_by_reading(Kind kind, const std::string& text, const std::string& question) {
  switch (kind) {
    case Kind::needle:
    case Kind::keys:
      return number_of(text, matches(question, "number for ([a-z-]+)\\?")[0]);
    case Kind::values:
      return joined(
          matches(text, "numbers for " + matches(question, "numbers for ([a-z-]+),")[0] + " is (\\d+)"));
    case Kind::queries: {
      std::vector<std::string> numbers;
      for (const std::string& key : matches(question, "([a-z]+-[a-z]+)"))
        numbers.push_back(number_of(text, key));
      return joined(numbers);
    }
    case Kind::variables: {
      std::vector<std::string> variables;
      for (std::string value = matches(question, "the value (\\d+)")[0];;) {
        const auto next = matches(text, "VAR ([A-Z]{5}) = (?:VAR )?" + value + "\\.");
        if (next.empty()) return joined(variables);
        EXPECT_EQ(next.size(), 1u);
        variables.push_back(value = next[0]);
      }
    }
    case Kind::common_words: {
      std::vector<std::string> words = by_frequency(text);
      words.resize(std::stoul(matches(question, "Which (\\d+) words")[0]));
      std::ranges::sort(words);
      return joined(words);
    }
    case Kind::frequent_words: {
      std::vector<std::string> words = by_frequency(text);
      words.resize(3);
      return joined(words);
    }
  }
  return "";
}

TEST(Samples, HaveTheLengthAndTheAnswerOfTheirText) {
  for (const Kind kind : all_kinds)
    for (const std::int64_t tokens : {600, 601, 2000, 20011})
      for (const std::uint64_t seed : {1, 2, 3}) {
        SCOPED_TRACE(fmt::format("{}, {} tokens, seed {}", name_of(kind), tokens, seed));
        const Sample sample = make({.kind = kind, .tokens = tokens, .depth = 0.3}, seed);
        ASSERT_EQ(std::ssize(sample.ids), tokens);
        EXPECT_EQ(sample.ids.back(), 256);
        EXPECT_EQ(sample.answer_end, tokens - 1);
        const auto span = std::span(sample.ids)
                              .subspan(std::size_t(sample.answer_begin),
                                       std::size_t(sample.answer_end - sample.answer_begin));
        EXPECT_EQ(bytes->decode(span), " " + sample.answer);
        const auto [text, question] = taken_apart(sample);
        EXPECT_EQ(answer_by_reading(kind, text, question), sample.answer) << text << question;
      }
}

TEST(Samples, HideTheSentenceAtItsDepth) {
  for (const double depth : {0.0, 0.25, 0.5, 1.0}) {
    const auto [text, question] =
        taken_apart(make({.kind = Kind::needle, .tokens = 20000, .depth = depth}, 5));
    const std::size_t at = text.find(" The special magic number");
    ASSERT_NE(at, text.npos);
    const std::size_t behind = text.find("is ", at) + 11;
    const double before = double(at) / double(text.size() - (behind - at));
    EXPECT_NEAR(before, depth, 0.005);
  }
}

TEST(Samples, FollowFromTheirSeed) {
  for (const Kind kind : all_kinds) {
    const SampleOrder order{.kind = kind, .tokens = 900, .depth = 0.5};
    EXPECT_EQ(make(order, 1).ids, make(order, 1).ids);
    EXPECT_NE(make(order, 1).answer, make(order, 2).answer) << name_of(kind);
  }
}

TEST(Samples, AsManyAsAreAskedFor) {
  const KindOptions options{.keys = 9, .values = 2, .queries = 3, .hops = 1, .words = 5, .digits = 3};
  const auto text = [&](Kind kind) {
    const Sample sample = make({.kind = kind, .tokens = 3000, .depth = 0.5}, 1, options);
    return taken_apart(sample).first + "|" + sample.answer;
  };
  EXPECT_EQ(matches(text(Kind::keys), "(number for)").size(), 9u);
  EXPECT_THAT(text(Kind::values), testing::ContainsRegex("\\|[0-9]{3}, [0-9]{3}$"));
  EXPECT_THAT(text(Kind::queries), testing::ContainsRegex("\\|[0-9]{3}, [0-9]{3}, [0-9]{3}$"));
  EXPECT_EQ(matches(text(Kind::variables), "(VAR [A-Z]+ =)").size(), 4u);  // two chains
  EXPECT_THAT(text(Kind::common_words), testing::ContainsRegex("\\|([a-z]+, ){4}[a-z]+$"));
}

TEST(Samples, TerseOnesHidePairs) {
  const KindOptions options{.keys = 5, .digits = 2, .terse = true};
  const Sample sample = make({.kind = Kind::keys, .tokens = 400, .depth = 0.5}, 1, options);
  const auto end = std::size_t(sample.answer_begin);
  const std::string prompt = bytes->decode(std::span(sample.ids).first(end));
  EXPECT_EQ(matches(prompt, "([A-Z]{2} [0-9]{2}\\.)").size(), 5u);
  EXPECT_THAT(matches(prompt, prompt.substr(prompt.size() - 2) + " ([0-9]{2})\\."),
              ElementsAre(sample.answer));
  EXPECT_THAT(error_text([&] { make({.kind = Kind::values, .tokens = 900}, 1, options); }),
              mentions("--terse", "values"));
  EXPECT_THAT(error_text([] { check({.keys = 677, .terse = true}); }), mentions("--keys 677"));
}

TEST(Samples, TooShortLengthsAreNamed) {
  for (const Kind kind : all_kinds)
    EXPECT_THAT(error_text([&] { make({.kind = kind, .tokens = 100, .depth = 0}, 1); }),
                mentions(name_of(kind), "100", "--lengths"));
  // No words beside the question, and few.
  for (const std::int64_t tokens : {110, 120})
    EXPECT_THAT(error_text([&] { make({.kind = Kind::common_words, .tokens = tokens}, 1); }),
                mentions("common-words", "--lengths"));
}

TEST(Kinds, AreNamedOrRefused) {
  for (const Kind kind : all_kinds) EXPECT_EQ(parse_kind(name_of(kind)), kind);
  EXPECT_THAT(error_text([] { parse_kind("qa"); }), mentions("'qa'", "free text", "needle"));
  EXPECT_THAT(error_text([] { parse_kind("neddle"); }), mentions("'neddle'", "needle"));
  for (const auto& [options, named] : {std::pair(KindOptions{.keys = 0}, "--keys 0"),
                                       {KindOptions{.keys = 1601}, "--keys 1601"},
                                       {KindOptions{.values = -1}, "--values -1"},
                                       {KindOptions{.queries = 101}, "--queries 101"},
                                       {KindOptions{.hops = -1}, "--hops -1"},
                                       {KindOptions{.words = 21}, "--words 21"},
                                       {KindOptions{.digits = 16}, "--digits 16"},
                                       {KindOptions{.keys = 100, .digits = 1}, "--digits 1"}})
    EXPECT_THAT(error_text([&] { check(options); }), mentions(named));
  check({});
}

using Fillers = FolderTest;

TEST_F(Fillers, AreAStretchOfTheText) {
  const std::string path = folder_.write("text", "One two.\n\n Three\tfour five! Six");
  const PieceEncoder encode(*bytes);
  Filler filler = Filler::of_text(encode, path);
  std::set<std::string> drawn;
  for (const std::uint64_t seed : {1, 2, 3, 4, 5, 6, 7, 8}) {
    Random random{seed};
    std::string text;
    for (const auto& sentence : filler.draw(40, random)) text += bytes->decode(sentence);
    drawn.insert(text);
  }
  EXPECT_THAT(drawn, ElementsAre(" One two. Three four five! Six One two. Three four five!",
                                 " Six One two. Three four five! Six One two.",
                                 " Three four five! Six One two. Three four five!"));
  EXPECT_THAT(error_text([&] { Filler::of_text(encode, folder_.write("empty", " \n")); }),
              mentions("--text", "empty"));
  EXPECT_THAT(error_text([&] { Filler::of_text(encode, folder_.write("bad", "\xff")); }),
              mentions("--text", "bad", "UTF-8"));
}

/// One id a byte, with habits that other tokenizers have.
class Habits : public data::Tokenizer {
 public:
  bool begins = false, adds_space = false, by_length = false;
  const data::TokenizerIdentity& identity() const override { return identity_; }
  std::span<const std::uint8_t> model() const override { return {}; }
  std::string decode(std::span<const std::int32_t>) const override { return ""; }
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    if (begins) ids.push_back(300);
    if (adds_space && !text.empty()) ids.push_back(' ');
    for (const char c : text) ids.push_back(c);
    if (by_length) ids.push_back(static_cast<std::int32_t>(text.size()));
  }

 private:
  data::TokenizerIdentity identity_{
      .name = "habits", .vocabulary = 400, .end_of_document = 399, .fingerprint = ""};
};

TEST(PieceEncoders, JoinPiecesAsTheTokenizerWould) {
  Habits habits;
  const auto piece = [&] {
    const PieceEncoder encode(habits);
    return std::pair(encode.front(), encode("ab"));
  };
  const Ids with_space{' ', 'a', 'b'};
  EXPECT_EQ(piece(), std::pair(Ids{}, with_space));
  habits.begins = true;
  EXPECT_EQ(piece(), std::pair(Ids{300}, with_space));
  habits.adds_space = true;
  EXPECT_EQ(piece(), std::pair(Ids{300}, with_space));
  habits.by_length = true;
  EXPECT_THAT(error_text(piece), mentions("habits", "word by word"));
}

class SampleSets : public FolderTest {
 protected:
  /// Two samples of 12 tokens and one of 20.
  std::string write(bool loss_mask = true) const {
    const auto group = [](std::int64_t tokens, std::vector<SampleFacts> samples) {
      return SampleGroup{
          .tokens = tokens, .samples = std::move(samples), .compose = [tokens](std::int64_t index) {
            Sample sample =
                eval::compose(bytes_of("what"), bytes_of(index == 0 ? " a" : " bcd"), tokens, 256);
            sample.answer = index == 0 ? "a" : "bcd";
            return sample;
          }};
    };
    write_samples(
        folder_.path() / "set", *bytes,
        {group(12, {{"needle", 0.5, ""}, {"needle", 1.0, ""}}), group(20, {{"values", std::nullopt, ""}})},
        {{"seed", 1}}, loss_mask);
    return folder_.file("set");
  }
  static Ids bytes_of(std::string_view text) { return Ids(text.begin(), text.end()); }
  std::string error() const {
    return error_text([&] { read_samples(folder_.path() / "set"); });
  }
};

TEST_F(SampleSets, AreReadAsWritten) {
  const SampleSet set = read_samples(write());
  ASSERT_EQ(set.shards.size(), 2u);
  EXPECT_EQ(set.tokenizer, bytes->identity());
  EXPECT_EQ(set.shards[0].tokens, 12);
  EXPECT_EQ(set.shards[1].tokens, 20);
  const auto& samples = set.shards[0].samples;
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[1].kind, "needle");
  EXPECT_EQ(samples[1].depth, 1.0);
  EXPECT_EQ(samples[1].answer, "bcd");
  EXPECT_EQ(set.shards[1].samples[0].depth, std::nullopt);
}

// A sample is a document and a sequence, and the tokens of its answer are the targets.
TEST_F(SampleSets, AreSequencesOfADataset) {
  const std::filesystem::path shard = std::filesystem::path(write()) / "length-0000012.h5";
  data::verify_shard(data::TokenShard::open(shard));
  const data::TokenDataset dataset(std::span(&shard, 1), 12);
  ASSERT_EQ(dataset.sequences(), 2);
  const data::Sequence sequence = dataset.read(1, {0, 0, 1, 12, 0, 12});
  EXPECT_THAT(sequence.tokens, ElementsAre('w', 'h', 'a', 't', ' ', 'b', 'c', 'd', 256, 256, 256, 256));
  EXPECT_THAT(sequence.targets, ElementsAre(-1, -1, -1, ' ', 'b', 'c', 'd', -1, -1, -1, -1, -1));
  EXPECT_THAT(sequence.document_starts, ElementsAre(0));
}

TEST_F(SampleSets, MayCountAllTokens) {
  const std::filesystem::path shard = std::filesystem::path(write(false)) / "length-0000012.h5";
  const data::TokenDataset dataset(std::span(&shard, 1), 12);
  EXPECT_THAT(dataset.read(0, {0, 0, 1, 12, 0, 12}).targets,
              ElementsAre('h', 'a', 't', ' ', 'a', 256, 256, 256, 256, 256, 256, -1));
}

TEST_F(SampleSets, AreWrittenWholeOrNotAtAll) {
  write();
  EXPECT_THAT(error_text([&] { write(); }), mentions(folder_.file("set")));
  const SampleGroup failing{.tokens = 12,
                            .samples = {{"needle", 0.5, ""}},
                            .compose = [](std::int64_t) -> Sample { fail("no room"); }};
  EXPECT_THAT(error_text([&] { write_samples(folder_.path() / "other", *bytes, {failing}, {}, true); }),
              mentions("no room"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1);
}

TEST_F(SampleSets, OtherFoldersAndDamageAreNamed) {
  EXPECT_THAT(error(), mentions("set", "samples.jsonl", "annulus-eval make"));
  const std::string folder = write(), list = folder + "/samples.jsonl", text = io::read_text(list);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    io::write_text_atomically(list, changed);
    return error();
  };
  EXPECT_THAT(with("annulus-samples", "other"), mentions(list, "line 1"));
  EXPECT_THAT(with("\"version\":1", "\"version\":2"), mentions(list, "line 1"));
  EXPECT_THAT(with("length-0000012.h5", "../length.h5"), mentions(list, "line 1", "../length.h5"));
  EXPECT_THAT(with("\"sample\":1", "\"sample\":7"), mentions(list, "line 3"));
  EXPECT_THAT(with("\"kind\":\"needle\"", "\"kind\":3"), mentions(list, "line 2"));
  EXPECT_THAT(with("\"checksum\":", "\"checksum\":1"), mentions(list, "length-0000012.h5"));
  std::filesystem::remove(folder + "/length-0000020.h5");
  io::write_text_atomically(list, text);
  EXPECT_THAT(error(), mentions("length-0000020.h5"));
}

class BenchmarkFiles : public FolderTest {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((folder_.path() / name).parent_path());
    return folder_.write(name, text);
  }
};

TEST_F(BenchmarkFiles, Ruler) {
  write("niah_single_1/validation.jsonl",
        R"({"index": 0, "input": "Some text. The number for a is", "outputs": ["123"], "length": 9})"
        "\n"
        R"({"index": 1, "input": "More text.", "outputs": [456], "length": 9, "answer_prefix": " It is "})"
        "\n");
  write("niah_multikey_2.jsonl", R"({"index": 0, "input": "x is", "outputs": ["y"], "length": 3})"
                                 "\n");
  const auto records = read_ruler({folder_.path()});
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].task, "niah_multikey_2");
  EXPECT_EQ(records[1].task, "niah_single_1");
  EXPECT_EQ(records[1].prompt, "Some text. The number for a is");
  EXPECT_EQ(records[1].answer, "123");
  EXPECT_EQ(records[2].prompt, "More text. It is");
  EXPECT_EQ(records[2].answer, "456");
}

TEST_F(BenchmarkFiles, WhatOfRulerHasNoSingleAnswerIsNamed) {
  const auto error = [&](const std::string& name, const std::string& text) {
    const std::filesystem::path path = write(name, text);
    return error_text([&] { read_ruler({path}); });
  };
  const std::string two = R"({"index": 0, "input": "x", "outputs": ["1", "2"], "length": 3})";
  for (const char* task : {"vt", "cwe", "fwe", "niah_multivalue", "niah_multiquery"})
    EXPECT_THAT(error(std::string(task) + "/validation.jsonl", two),
                mentions(task, "any order", "niah_single_1"));
  EXPECT_THAT(error("qa_1/validation.jsonl", two), mentions("qa_1", "free text"));
  EXPECT_THAT(error("mine/validation.jsonl", two), mentions("mine/validation.jsonl", "niah_single_1"));
  EXPECT_THAT(error("niah_single_1/a.jsonl", two), mentions("a.jsonl, line 1", "has 2"));
  EXPECT_THAT(error("niah_single_1/b.jsonl", "{\"input\": \"x\"}"), mentions("b.jsonl, line 1", "outputs"));
  EXPECT_THAT(error("niah_single_1/c.jsonl", "\nno JSON"), mentions("c.jsonl, line 2"));
  EXPECT_THAT(error("niah_single_1/d.jsonl", R"({"input": "x", "outputs": [" "]})"),
              mentions("d.jsonl, line 1", "empty"));
  EXPECT_THAT(error_text([&] { read_ruler({folder_.path() / "nowhere.jsonl"}); }), mentions("nowhere.jsonl"));
  std::filesystem::create_directory(folder_.path() / "empty");
  EXPECT_THAT(error_text([&] { read_ruler({folder_.path() / "empty"}); }), mentions("empty", "*.jsonl"));
}

TEST_F(BenchmarkFiles, InfiniteBench) {
  const auto read = [&](const std::string& name, const std::string& text) {
    return read_infinitebench({write(name, text)}).at(0);
  };
  const auto passkey = read(
      "passkey.jsonl",
      R"({"id": 0, "context": "The pass key is 7.", "input": "What is the pass key?\n", "answer": ["7"], "options": []})");
  EXPECT_EQ(passkey.task, "passkey");
  EXPECT_EQ(passkey.prompt, "The pass key is 7.\n\nWhat is the pass key?\nThe pass key is");
  EXPECT_EQ(passkey.answer, "7");
  EXPECT_EQ(read("math_find.jsonl",
                 R"({"id": 0, "context": "[1, 2]", "input": "The largest?", "answer": 2, "options": []})")
                .answer,
            "2");
  for (const char* answer : {R"(["b c"])", R"("B")", R"(["b c", "B"])"}) {
    const auto choice =
        read("longbook_choice_eng.jsonl",
             fmt::format(
                 R"({{"id": 0, "context": "x", "input": "Which?", "answer": {}, "options": ["a", "b c"]}})",
                 answer));
    EXPECT_EQ(choice.prompt, "x\n\nWhich?\nA. a\nB. b c\nThe letter of the right answer is");
    EXPECT_EQ(choice.answer, "B");
  }
}

TEST_F(BenchmarkFiles, WhatOfInfiniteBenchHasNoSingleAnswerIsNamed) {
  const auto error = [&](const std::string& name, const std::string& text) {
    const std::filesystem::path path = write(name, text);
    return error_text([&] { read_infinitebench({path}); });
  };
  for (const char* task :
       {"longbook_sum_eng", "longbook_qa_eng", "longbook_qa_chn", "longdialogue_qa_eng", "math_calc"})
    EXPECT_THAT(error(std::string(task) + ".jsonl", "{}"), mentions(task, "passkey"));
  EXPECT_THAT(error("code_debug.jsonl",
                    R"({"id": 0, "context": "x", "input": "y", "answer": ["z"], "options": ["a"]})"),
              mentions("code_debug.jsonl, line 1", "\"z\"", "options"));
  EXPECT_THAT(error("passkey.jsonl", R"({"id": 0, "input": "y", "answer": ["z"]})"),
              mentions("passkey.jsonl, line 1", "context"));
}

TEST_F(BenchmarkFiles, BooksOfPg19ByNumber) {
  for (const char* name : {"books/train/110.txt", "books/train/9.txt", "books/notes.md"}) write(name, "text");
  EXPECT_THAT(find_pg19({folder_.path() / "books"}),
              ElementsAre(folder_.path() / "books/train/9.txt", folder_.path() / "books/train/110.txt"));
  write("books/README.txt", "text");
  EXPECT_THAT(error_text([&] { find_pg19({folder_.path() / "books"}); }),
              mentions("README.txt", "NUMBER.txt"));
}

}  // namespace
}  // namespace annulus::eval
