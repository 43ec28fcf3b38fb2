// Long texts are encoded in parts: the ids must be those of the whole, whatever the model does to spaces.
#include <gmock/gmock.h>

#include <annulus/training/data/tokenizer.hpp>

#include "support/shell.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::data {
namespace {

using annulus::test::run_shell;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<std::int32_t> ids_of(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

/// The cuts that are found behind all fronts of a text; each keeps the ids.
std::map<std::size_t, std::size_t> sound_cuts(const Tokenizer& tokenizer, const std::string& text) {
  const std::vector<std::int32_t> whole = ids_of(tokenizer, text);
  std::map<std::size_t, std::size_t> cuts;
  for (std::size_t size = 1; size < text.size(); ++size) {
    const auto cut = tokenizer.last_cut(std::string_view(text).substr(0, size));
    if (!cut || !cuts.emplace(cut->end, cut->next).second) continue;
    EXPECT_LE(cut->next, size);
    std::vector<std::int32_t> ids = ids_of(tokenizer, text.substr(0, cut->end));
    tokenizer.encode(std::string_view(text).substr(cut->next), ids);
    EXPECT_EQ(ids, whole) << "cut at " << cut->end << " behind '" << text.substr(0, cut->end) << "'";
  }
  return cuts;
}

const char* const words = "the time of a bee is the time of all bees";
/// Spaces of all kinds, the mark of spaces itself, what becomes a space or nothing, letters that grow
/// together.
const char* const strange =
    "  the time\n\nof  a bee\t is\r\n  a \xe2\x96\x81 mark\xe2\x96\x81 \xe2\x96\x81x and \xe2\x80\x8b zero"
    "\xe2\x80\x8b e\xcc\x81 \xcc\x81 \xef\xbc\xa1 b\xe3\x80\x80 c \xc2\xa0"
    "d\xc2\xad e \xc2\xa8 f \xe4\xb8\xad\xe6\x96\x87 \xe5\xad\x97\n\xe7\xac\xa6 <s> </s> \xc2\x85 a \x01 "
    "b\x02 c\x7f d   ";

TEST(TextCut, BytesAreCutAnywhere) {
  EXPECT_THAT(sound_cuts(*make_byte_tokenizer(), words), SizeIs(std::string(words).size() - 1));
}

class ModelCut : public testing::Test {
 protected:
  /// The cuts of both texts with a model that is trained so; fewer than `least` are a failure.
  void expect_cuts(const std::string& options, std::size_t least, std::size_t least_strange) {
    const auto trained =
        run_shell("cd " + folder_.path().string() +
                  " && cat " ANNULUS_FIXTURE_TEXT
                  "/*.txt > all.txt && spm_train --input=all.txt --model_prefix=m --hard_vocab_limit=false "
                  "--vocab_size=400 --max_sentence_length=100000 --num_threads=1 " +
                  options);
    ASSERT_EQ(trained.status, 0) << trained.output;
    const auto tokenizer = make_tokenizer("sentencepiece", folder_.file("m.model"));
    const auto cuts = sound_cuts(*tokenizer, words), others = sound_cuts(*tokenizer, strange);
    EXPECT_GE(cuts.size(), least) << options;
    EXPECT_GE(others.size(), least_strange) << options;
    if (least == 0) {
      EXPECT_THAT(cuts, IsEmpty()) << options;
      EXPECT_THAT(others, IsEmpty()) << options;
    }
  }
  void SetUp() override {
    if (run_shell("command -v spm_train").status != 0)
      GTEST_SKIP() << "spm_train (package sentencepiece) is not installed";
    folder_.write("rules.tsv", "78\t20\n7A\t\n61 20\t62\n");
    folder_.write("letters.tsv", "78\t20\n7A\t\n");
  }
  annulus::test::TemporaryFolder folder_;
};

constexpr const char* as_llama =
    " --normalization_rule_name=identity --remove_extra_whitespaces=false --byte_fallback=true ";

TEST_F(ModelCut, KeepsTheIdsOfTheWhole) {
  for (const std::string type : {"--model_type=unigram ", "--model_type=bpe "}) {
    expect_cuts(type, 10, 15);
    expect_cuts(type + "--normalization_rule_name=nmt_nfkc_cf --user_defined_symbols='bee,<x>'", 10, 15);
    expect_cuts(type + "--remove_extra_whitespaces=false", 10, 5);
    expect_cuts(type + "--normalization_rule_name=identity", 10, 10);
    expect_cuts(type + as_llama, 10, 10);
    expect_cuts(type + as_llama + "--add_dummy_prefix=false --allow_whitespace_only_pieces=true", 10, 10);
    expect_cuts(type + "--normalization_rule_tsv=letters.tsv", 10, 1);
  }
}

/// Where no cut is exact, none is offered.
TEST_F(ModelCut, IsUnknownWhereItWouldChangeIds) {
  for (const std::string options :
       {"--model_type=word", "--model_type=bpe --treat_whitespace_as_suffix=true",
        "--model_type=bpe --add_dummy_prefix=false", "--model_type=bpe --normalization_rule_tsv=rules.tsv",
        "--model_type=bpe --split_by_whitespace=false"})
    expect_cuts(options, 0, 0);
}

}  // namespace
}  // namespace annulus::data
