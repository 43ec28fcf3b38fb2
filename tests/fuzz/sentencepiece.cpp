// SentencePiece models: what is not refused encodes any text without leaving its tables.
#include <annulus/training/data/tokenizer.hpp>

#include "fuzz.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace annulus;
  fuzz::accepts("a.model", [&] {
    const auto tokenizer =
        data::make_sentencepiece_tokenizer(std::string(fuzz::text_of(data, size)), "a.model");
    std::string text =
        "the quick brown fox, ① ﬁne ＡＢＣ "
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    for (int byte = 1; byte < 0x80; ++byte) text += {static_cast<char>(byte), 'a'};
    for (int byte = 0xc2; byte < 0xe0; ++byte) text += {static_cast<char>(byte), '\x80'};
    std::vector<std::int32_t> ids;
    tokenizer->last_cut(text);
    try {
      tokenizer->encode(text, ids);
      tokenizer->decode(ids);
    } catch (const Error&) {  // names the text's bytes, not the file
    }
  });
  return 0;
}
