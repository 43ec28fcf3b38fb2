#include "eval/samples/filler.hpp"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <utility>

#include <annulus/base/error.hpp>

#include "base/file.hpp"
#include "base/text.hpp"

namespace annulus::eval {

namespace {

constexpr std::array<std::string_view, 16> qualities{"old",   "young", "quiet", "tall",   "small", "green",
                                                     "tired", "happy", "slow",  "clever", "cold",  "warm",
                                                     "grey",  "brave", "thin",  "kind"};
constexpr std::array<std::string_view, 16> actors{"farmer",  "teacher", "sailor", "doctor", "child",  "dog",
                                                  "painter", "cook",    "miller", "horse",  "singer", "baker",
                                                  "judge",   "driver",  "tailor", "guard"};
constexpr std::array<std::string_view, 16> actions{
    "watched", "found", "carried", "liked", "painted", "met",  "helped", "followed",
    "saw",     "knew",  "passed",  "heard", "wanted",  "left", "sold",   "took"};
constexpr std::array<std::string_view, 16> places{
    "river", "bridge", "market",  "school", "forest",  "church", "house", "road",
    "mill",  "garden", "harbour", "field",  "station", "hill",   "lake",  "tower"};

/// Words after which a sentence without an end is cut.
constexpr int longest_sentence = 40;

/// The longest text, so that its sentences fit into memory.
constexpr FileKind filler_text{"a text of fillers", kinds::mib * 512};

std::vector<std::string> sentences_of(std::string_view text) {
  std::vector<std::string> sentences(1);
  int words = 0;
  constexpr std::string_view space = " \t\r\n\v\f";
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(space), text.size()));
    if (text.empty()) break;
    const std::string_view word = text.substr(0, text.find_first_of(space));
    text.remove_prefix(word.size());
    if (words++ > 0) sentences.back() += ' ';
    sentences.back() += word;
    if (word.find_last_of(".!?") + 1 == word.size() || words == longest_sentence) {
      sentences.emplace_back();
      words = 0;
    }
  }
  if (sentences.back().empty()) sentences.pop_back();
  return sentences;
}

}  // namespace

Filler::Filler(const PieceEncoder& encode, std::vector<std::string> sentences, bool in_order)
    : encode_(encode), sentences_(std::move(sentences)), ids_(sentences_.size()), in_order_(in_order) {}

Filler Filler::generated(const PieceEncoder& encode) {
  Random random{0};
  const auto any = [&](const auto& words) { return words[static_cast<std::size_t>(random.below(16))]; };
  std::vector<std::string> sentences;
  while (sentences.size() < 1024) {
    const std::array words{any(qualities), any(actors), any(actions),
                           any(qualities), any(actors), any(places)};
    sentences.push_back(fmt::format("The {} {} {} the {} {} near the {}.", words[0], words[1], words[2],
                                    words[3], words[4], words[5]));
  }
  return {encode, std::move(sentences), false};
}

Filler Filler::of_text(const PieceEncoder& encode, const std::filesystem::path& file) {
  const std::string text = read_text(file, filler_text);
  require(is_text(text), "--text '{}' is not UTF-8, or holds a NUL: name a text, which iconv can convert",
          file.string());
  std::vector<std::string> sentences = sentences_of(text);
  require(!sentences.empty(), "--text '{}' has no word: name a file of text", file.string());
  return {encode, std::move(sentences), true};
}

std::vector<std::span<const std::int32_t>> Filler::draw(std::int64_t tokens, Random& random) {
  const std::int64_t count = std::ssize(sentences_);
  std::vector<std::span<const std::int32_t>> drawn;
  for (std::int64_t next = random.below(count); tokens > 0;
       next = in_order_ ? (next + 1) % count : random.below(count)) {
    const auto index = static_cast<std::size_t>(next);
    if (ids_[index].empty()) ids_[index] = encode_(sentences_[index]);
    require(!ids_[index].empty(), "the tokenizer gives no ids for '{}': use another one", sentences_[index]);
    drawn.emplace_back(ids_[index]);
    tokens -= std::ssize(ids_[index]);
  }
  return drawn;
}

}  // namespace annulus::eval
