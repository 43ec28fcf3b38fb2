#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "eval/samples/random.hpp"

namespace annulus::eval {

/// What is asked about a text. Every answer is one fixed text.
enum class Kind : std::uint8_t {
  needle,          ///< the number that a sentence gives for a key
  keys,            ///< the number that a sentence gives for a key, among sentences with other keys
  values,          ///< all numbers that sentences give for a key, in the order of the text
  queries,         ///< the numbers of several keys, in the order of the question
  variables,       ///< the variables that have a value by assignments, in the order of the text
  common_words,    ///< of a list of words the most common ones, in alphabetical order
  frequent_words,  ///< of words whose frequency falls by a power law the three most frequent ones, in order
};
inline constexpr std::array<std::string_view, 7> kind_names{
    "needle", "keys", "values", "queries", "variables", "common-words", "frequent-words"};
inline std::string_view name_of(Kind kind) {
  return kind_names[static_cast<std::size_t>(kind)];
}

/// Throws Error for other names; it says which need free text as their answer.
Kind parse_kind(std::string_view name);

/// Whether a sample has a sentence that matters at a depth of its own.
constexpr bool has_depth(Kind kind) {
  return kind == Kind::needle || kind == Kind::keys;
}
/// Whether the text is a list of words in place of sentences.
constexpr bool is_list(Kind kind) {
  return kind == Kind::common_words || kind == Kind::frequent_words;
}

struct KindOptions {
  int keys = 4;        ///< of kind keys
  int values = 4;      ///< of kind values
  int queries = 4;     ///< of kind queries
  int hops = 4;        ///< of kind variables: assignments from one variable to the next
  int words = 3;       ///< of kind common-words
  int digits = 7;      ///< of a number
  bool terse = false;  ///< of kinds needle and keys: `QX 46.` in place of sentences, for very small models
};
/// Throws Error naming the option that is out of range.
void check(const KindOptions& options);

/// A sentence to be hidden.
struct Needle {
  double depth = 0;  ///< share of the text before it
  std::string text;
};

/// A question about what is hidden in a text. The text is of sentences.
struct Question {
  std::vector<Needle> needles;  ///< by depth
  std::string text;             ///< behind the text; the answer follows
  std::string answer;
};
/// `depth` is that of the sentence that matters, for kinds that have it.
Question ask(Kind kind, double depth, const KindOptions& options, Random& random);

/// A question about the frequencies of words.
struct WordList {
  std::vector<std::string> words;   ///< different ones
  std::vector<double> frequencies;  ///< of `words`, with the sum 1
  std::size_t asked = 0;      ///< words in front that the answer has, which occur more often than the others
  bool by_frequency = false;  ///< the first occurs more often than the second, and so on
  std::string question, answer;
};
WordList ask_for_words(Kind kind, const KindOptions& options, Random& random);

}  // namespace annulus::eval
