#include "eval/samples/compose.hpp"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include <annulus/base/error.hpp>

namespace annulus::eval {

namespace {

void append(Ids& ids, std::span<const std::int32_t> more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

/// Tokens of the text, when the others are so many.
std::int64_t room_beside(std::int64_t others, const SampleOrder& order) {
  require(others <= order.tokens,
          "a sample of kind {} has {} tokens without any text around them, which are more than the {} of "
          "--lengths: give a longer one, or less to be found",
          name_of(order.kind), others, order.tokens);
  return order.tokens - others;
}

/// The text with what is hidden in it.
void add_sentences(Ids& ids, std::span<const Needle> needles, std::span<const Ids> needle_ids,
                   std::int64_t room, Filler& filler, Random& random) {
  const auto sentences = filler.draw(room, random);
  std::int64_t excess = -room;
  for (const auto& sentence : sentences) excess += std::ssize(sentence);
  std::size_t hidden = 0;
  std::int64_t before = 0;  // tokens of the text so far
  for (std::span<const std::int32_t> sentence : sentences) {
    for (; hidden < needles.size() && needles[hidden].depth * double(room) <= double(before); ++hidden)
      append(ids, needle_ids[hidden]);
    const std::int64_t cut = std::min(excess, std::ssize(sentence));
    excess -= cut;
    sentence = sentence.subspan(static_cast<std::size_t>(cut));
    append(ids, sentence);
    before += std::ssize(sentence);
  }
  for (; hidden < needles.size(); ++hidden) append(ids, needle_ids[hidden]);
}

/// Words of a list, drawn by their frequencies, so that there are `room` tokens of them, the first one in
/// part; the index in the list of each whole one. Empty where the counts do not say what the answer says.
std::vector<std::size_t> draw_words(const WordList& list, std::span<const Ids> word_ids, std::int64_t room,
                                    Random& random, std::int64_t& excess) {
  std::vector<std::size_t> drawn;
  std::vector<std::int64_t> counts(list.words.size());
  if (room == 0) return {};
  for (excess = -room; excess < 0;) {
    double share = random.share();
    std::size_t word = 0;
    while (word + 1 < counts.size() && share >= list.frequencies[word]) share -= list.frequencies[word++];
    drawn.push_back(word);
    excess += std::ssize(word_ids[word]);
    ++counts[word];
  }
  std::ranges::rotate(drawn, drawn.end() - 1);  // the one that is too long is cut, and leads
  if (excess > 0) --counts[drawn.front()];
  const auto asked = std::span(counts).first(list.asked), others = std::span(counts).subspan(list.asked);
  const bool told_apart =
      std::ranges::min(asked) > std::ranges::max(others) &&
      (!list.by_frequency || std::ranges::adjacent_find(asked, std::less_equal()) == asked.end());
  if (!told_apart) drawn.clear();
  return drawn;
}

void add_words(Ids& ids, const WordList& list, const PieceEncoder& encode, std::int64_t room,
               const SampleOrder& order, Random& random) {
  std::vector<Ids> word_ids;
  for (const std::string& word : list.words) word_ids.push_back(encode(word));
  std::int64_t excess = 0;
  std::vector<std::size_t> drawn;
  for (int attempt = 0; attempt < 100 && drawn.empty(); ++attempt)
    drawn = draw_words(list, word_ids, room, random, excess);
  require(!drawn.empty(),
          "a sample of kind {} with {} tokens has too few words for some to be the most common ones: give a "
          "longer one of --lengths",
          name_of(order.kind), order.tokens);
  for (const std::size_t word : drawn)
    append(ids, std::span<const std::int32_t>(word_ids[word])
                    .subspan(static_cast<std::size_t>(std::exchange(excess, 0))));
}

}  // namespace

Sample compose(const SampleOrder& order, const KindOptions& options, const PieceEncoder& encode,
               Filler& filler, Random& random) {
  Ids ids = encode.front();
  std::string answer;
  const auto room_for = [&](const Ids& question, const Ids& answer_ids, std::int64_t more) {
    const std::int64_t others = std::ssize(ids) + std::ssize(question) + std::ssize(answer_ids) + more + 1;
    return room_beside(others, order);
  };
  Ids question_ids, answer_ids;
  if (is_list(order.kind)) {
    const WordList list = ask_for_words(order.kind, options, random);
    question_ids = encode(list.question);
    answer_ids = encode(answer = list.answer);
    add_words(ids, list, encode, room_for(question_ids, answer_ids, 0), order, random);
  } else {
    const Question question = ask(order.kind, order.depth, options, random);
    question_ids = encode(question.text);
    answer_ids = encode(answer = question.answer);
    std::vector<Ids> needle_ids;
    std::int64_t hidden = 0;
    for (const Needle& needle : question.needles)
      hidden += std::ssize(needle_ids.emplace_back(encode(needle.text)));
    add_sentences(ids, question.needles, needle_ids, room_for(question_ids, answer_ids, hidden), filler,
                  random);
  }
  append(ids, question_ids);
  Sample sample = compose(ids, answer_ids, order.tokens, encode.end_of_document());
  sample.answer = std::move(answer);
  return sample;
}

Sample compose(const Ids& prompt, const Ids& answer, std::int64_t tokens, std::int32_t end_of_document) {
  Sample sample{.ids = prompt,
                .answer_begin = std::ssize(prompt),
                .answer_end = std::ssize(prompt) + std::ssize(answer)};
  append(sample.ids, answer);
  sample.ids.push_back(end_of_document);
  require(std::ssize(sample.ids) <= tokens, "a sample has {} tokens, more than {}", sample.ids.size(),
          tokens);
  sample.ids.resize(static_cast<std::size_t>(tokens), end_of_document);
  return sample;
}

}  // namespace annulus::eval
