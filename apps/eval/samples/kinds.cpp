#include "eval/samples/kinds.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <span>

#include <annulus/base/error.hpp>

#include "base/nearest.hpp"

namespace annulus::eval {

namespace {

constexpr std::array<std::string_view, 40> colours{
    "amber",  "azure",  "black", "blue",   "bronze", "brown",  "copper", "coral",  "cream", "crimson",
    "cyan",   "ebony",  "gold",  "indigo", "ivory",  "jade",   "khaki",  "lemon",  "lilac", "lime",
    "maroon", "mauve",  "mint",  "navy",   "ochre",  "olive",  "orange", "peach",  "pearl", "pink",
    "plum",   "purple", "red",   "rose",   "ruby",   "silver", "tan",    "violet", "white", "yellow"};
constexpr std::array<std::string_view, 40> animals{
    "badger", "bear",   "beaver", "bison",  "camel",   "cat",    "crane", "crow",   "deer",  "dolphin",
    "eagle",  "eel",    "falcon", "fox",    "frog",    "gecko",  "goat",  "goose",  "hare",  "hawk",
    "heron",  "jackal", "koala",  "lion",   "lizard",  "lynx",   "mole",  "moose",  "mouse", "newt",
    "otter",  "owl",    "panda",  "parrot", "penguin", "rabbit", "raven", "salmon", "seal",  "wolf"};

constexpr std::string_view of_free_text[] = {"qa",        "question-answering", "summary", "summarization",
                                             "summaries", "dialogue",           "chat",    "translation"};

std::int64_t most_keys() {
  return std::ssize(colours) * std::ssize(animals);
}

constexpr std::int64_t letters = 26;

/// Different pairs of capital letters.
std::vector<std::string> make_terse_keys(std::int64_t count, Random& random) {
  std::vector<std::string> keys;
  for (const std::int64_t pair : random.distinct(letters * letters, count))
    keys.push_back({static_cast<char>('A' + pair / letters), static_cast<char>('A' + pair % letters)});
  return keys;
}

std::vector<std::string> make_keys(std::int64_t count, Random& random) {
  std::vector<std::string> keys;
  for (const std::int64_t pair : random.distinct(most_keys(), count))
    keys.push_back(fmt::format("{}-{}", colours[static_cast<std::size_t>(pair) / animals.size()],
                               animals[static_cast<std::size_t>(pair) % animals.size()]));
  return keys;
}

/// Different numbers of so many digits.
std::vector<std::string> make_numbers(int digits, std::int64_t count, Random& random) {
  const auto first = static_cast<std::int64_t>(std::pow(10.0, digits - 1));
  std::vector<std::string> numbers;
  while (std::ssize(numbers) < count) {
    std::string number = std::to_string(first + random.below(9 * first));
    if (std::ranges::find(numbers, number) == numbers.end()) numbers.push_back(std::move(number));
  }
  return numbers;
}

std::vector<double> make_depths(std::int64_t count, Random& random) {
  std::vector<double> depths;
  for (std::int64_t i = 0; i < count; ++i) depths.push_back(random.share());
  return depths;
}

std::string says(std::string_view key, std::string_view number) {
  return fmt::format("The special magic number for {} is {}.", key, number);
}

Question about_one_key(std::int64_t keys_in_text, double depth, const KindOptions& options, Random& random) {
  const auto keys = options.terse ? make_terse_keys(keys_in_text, random) : make_keys(keys_in_text, random);
  const auto numbers = make_numbers(options.digits, keys_in_text, random);
  auto depths = make_depths(keys_in_text, random);
  depths[0] = depth;
  Question question;
  for (std::size_t i = 0; i < keys.size(); ++i)
    question.needles.push_back(
        {depths[i], options.terse ? fmt::format("{} {}.", keys[i], numbers[i]) : says(keys[i], numbers[i])});
  question.text = options.terse ? keys[0]
                                : fmt::format(
                                      "Question: What is the special magic number for {}? Answer: The "
                                      "special magic number for {} is",
                                      keys[0], keys[0]);
  question.answer = numbers[0];
  return question;
}

Question about_values(const KindOptions& options, Random& random) {
  const std::string key = make_keys(1, random)[0];
  const auto numbers = make_numbers(options.digits, options.values, random);
  auto depths = make_depths(options.values, random);
  std::ranges::sort(depths);
  Question question;
  for (std::size_t i = 0; i < numbers.size(); ++i)
    question.needles.push_back(
        {depths[i], fmt::format("One of the special magic numbers for {} is {}.", key, numbers[i])});
  question.text = fmt::format(
      "Question: What are all special magic numbers for {}, in the order of the text? Answer: The special "
      "magic numbers for {} are",
      key, key);
  question.answer = fmt::format("{}", fmt::join(numbers, ", "));
  return question;
}

Question about_keys(const KindOptions& options, Random& random) {
  const auto keys = make_keys(options.queries, random);
  const auto numbers = make_numbers(options.digits, options.queries, random);
  const auto depths = make_depths(options.queries, random);
  Question question;
  for (std::size_t i = 0; i < keys.size(); ++i)
    question.needles.push_back({depths[i], says(keys[i], numbers[i])});
  question.text = fmt::format(
      "Question: What are the special magic numbers for {}, "
      "in this order? Answer: The special magic numbers are",
      fmt::join(keys, ", "));
  question.answer = fmt::format("{}", fmt::join(numbers, ", "));
  return question;
}

/// A chain of assignments from the value that is asked for, and one from another value.
Question about_variables(const KindOptions& options, Random& random) {
  std::set<std::string> names;
  const std::int64_t in_chain = options.hops + 1;
  while (std::ssize(names) < 2 * in_chain) {
    std::string name;
    while (name.size() < 5) name += static_cast<char>('A' + random.below(26));
    names.insert(name);
  }
  std::vector<std::string> shuffled;  // not by name
  for (const std::int64_t i : random.distinct(std::ssize(names), std::ssize(names)))
    shuffled.push_back(*std::next(names.begin(), i));
  const auto values = make_numbers(options.digits, 2, random);
  Question question;
  for (std::size_t chain = 0; chain < 2; ++chain) {
    const auto variables = std::span(shuffled).subspan(chain * std::size_t(in_chain), std::size_t(in_chain));
    auto depths = make_depths(in_chain, random);
    std::ranges::sort(depths);
    for (std::size_t i = 0; i < variables.size(); ++i)
      question.needles.push_back(
          {depths[i], i == 0 ? fmt::format("VAR {} = {}.", variables[i], values[chain])
                             : fmt::format("VAR {} = VAR {}.", variables[i], variables[i - 1])});
    if (chain == 0) question.answer = fmt::format("{}", fmt::join(variables, ", "));
  }
  question.text = fmt::format(
      "Question: Which variables have the value {}, in the order of the text? Answer: They are", values[0]);
  return question;
}

}  // namespace

Kind parse_kind(std::string_view name) {
  require(std::ranges::find(of_free_text, name) == std::end(of_free_text),
          "--kinds: '{}' needs answers of free text, which no fixed text can be compared with: choose of {}",
          name, fmt::join(kind_names, ", "));
  return static_cast<Kind>(place_of_name(name, kind_names, "--kinds"));
}

void check(const KindOptions& options) {
  const auto in_range = [](std::string_view option, int value, std::int64_t least, std::int64_t most) {
    require(value >= least && value <= most, "{} {}: give {} to {}", option, value, least, most);
  };
  in_range("--keys", options.keys, 1, options.terse ? letters * letters : most_keys());
  in_range("--values", options.values, 1, 1000);
  in_range("--queries", options.queries, 1, 100);
  in_range("--hops", options.hops, 0, 1000);
  in_range("--words", options.words, 1, 20);
  in_range("--digits", options.digits, 1, 15);
  const int numbers = std::max({options.keys, options.values, options.queries, 2});
  require(std::pow(10.0, options.digits - 1) * 9 >= numbers,
          "--digits {}: there are fewer such numbers than the {} of a sample: give more digits",
          options.digits, numbers);
}

Question ask(Kind kind, double depth, const KindOptions& options, Random& random) {
  ANNULUS_ASSERT(!is_list(kind));
  require(!options.terse || has_depth(kind), "--terse is for kinds needle and keys, not for {}",
          name_of(kind));
  Question question = kind == Kind::needle    ? about_one_key(1, depth, options, random)
                      : kind == Kind::keys    ? about_one_key(options.keys, depth, options, random)
                      : kind == Kind::values  ? about_values(options, random)
                      : kind == Kind::queries ? about_keys(options, random)
                                              : about_variables(options, random);
  std::ranges::stable_sort(question.needles, {}, &Needle::depth);
  return question;
}

WordList ask_for_words(Kind kind, const KindOptions& options, Random& random) {
  ANNULUS_ASSERT(is_list(kind));
  WordList list;
  for (const std::int64_t i : random.distinct(std::ssize(animals), std::ssize(animals)))
    list.words.emplace_back(animals[static_cast<std::size_t>(i)]);
  list.by_frequency = kind == Kind::frequent_words;
  list.asked = list.by_frequency ? 3 : static_cast<std::size_t>(options.words);
  const std::span asked = std::span(list.words).first(list.asked);
  const auto count = static_cast<double>(list.words.size()), common = static_cast<double>(list.asked);
  for (std::size_t i = 0; i < list.words.size(); ++i)
    list.frequencies.push_back(list.by_frequency ? 1 / std::pow(static_cast<double>(i + 1), 2)
                               : i < list.asked  ? 0.6 / common
                                                 : 0.4 / (count - common));
  double sum = 0;
  for (const double frequency : list.frequencies) sum += frequency;
  for (double& frequency : list.frequencies) frequency /= sum;
  if (!list.by_frequency) std::ranges::sort(asked);
  list.question =
      list.by_frequency
          ? "Question: Which three words are the most frequent ones, "
            "from the most frequent on? Answer: They are"
          : fmt::format(
                "Question: Which {} words are the most common ones, in alphabetical order? Answer: They are",
                list.asked);
  list.answer = fmt::format("{}", fmt::join(asked, ", "));
  return list;
}

}  // namespace annulus::eval
