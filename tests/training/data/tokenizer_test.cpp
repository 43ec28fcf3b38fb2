#include <sys/stat.h>

#include <annulus/training/data/tokenizer.hpp>

#include "base/text.hpp"
#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::data {
namespace {

TEST(ByteTokenizer, IdsAreBytes) {
  const auto tokenizer = make_byte_tokenizer();
  EXPECT_EQ(tokenizer->identity(), (TokenizerIdentity{"byte", 257, 256, ""}));
  std::vector<std::int32_t> ids{7};
  tokenizer->encode("aü\xff", ids);
  EXPECT_THAT(ids, testing::ElementsAre(7, 'a', 0xc3, 0xbc, 0xff));
  ids.push_back(256);
  EXPECT_EQ(tokenizer->decode(ids), "\aaü\xff");
  EXPECT_TRUE(tokenizer->model().empty());
}

TEST(ByteTokenizer, DecodeNamesTheIdItDoesNotHave) {
  const std::vector<std::int32_t> ids{257};
  EXPECT_THAT(error_text([&] { make_byte_tokenizer()->decode(ids); }), mentions("257"));
}

TEST(MakeTokenizer, TellsWhatIsWrong) {
  const annulus::test::TemporaryFolder folder;
  const std::string text = folder.write("text.model", "this is no model"),
                    empty = folder.write("empty.model", ""), pipe = folder.file("pipe.model");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const auto& [name, model, named] : {std::array<std::string, 3>{"bpe", "", "'bpe'"},
                                           {"byte", "m.model", "'m.model'"},
                                           {"sentencepiece", "", "sentencepiece"},
                                           {"sentencepiece", "/no/m.model", "'/no/m.model'"},
                                           {"sentencepiece", text, text},
                                           {"sentencepiece", pipe, pipe},
                                           {"sentencepiece", "/dev/zero", "'/dev/zero'"},
                                           {"sentencepiece", empty, empty}})
    EXPECT_THAT(error_text([&] { make_tokenizer(name, model); }), mentions(named));
}

TEST(TextPrefix, EndsBeforeWhatIsNoText) {
  EXPECT_EQ(text_prefix("aü"), 3u);
  EXPECT_EQ(text_prefix("aü\xff"), 3u);
  EXPECT_EQ(text_prefix("a\xc3"), 1u);
  EXPECT_EQ(text_prefix(std::string_view("a\0b", 3)), 1u);
}

TEST(IsText, AcceptsUtf8) {
  for (const char* text :
       {"", "plain\n\ttext\x7f", "ü", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
        "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(is_text(text)) << testing::PrintToString(text);
  }
}

TEST(IsText, RejectsEverythingElse) {
  using namespace std::string_view_literals;
  for (const auto text :
       {"a\0b"sv, "\x80"sv, "\xbf"sv, "\xc0\x80"sv, "\xc1\xbf"sv, "\xc3"sv, "\xc3("sv, "\xe0\x9f\xbf"sv,
        "\xe2\x82"sv, "\xe2\x82("sv, "\xed\xa0\x80"sv, "\xf0\x8f\xbf\xbf"sv, "\xf4\x90\x80\x80"sv,
        "\xf5\x80\x80\x80"sv, "\xf0\x9f\x99"sv, "\xff"sv}) {
    EXPECT_FALSE(is_text(text)) << testing::PrintToString(text);
    EXPECT_FALSE(is_text("ok " + std::string(text))) << testing::PrintToString(text);
  }
}

}  // namespace
}  // namespace annulus::data
