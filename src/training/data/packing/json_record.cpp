#include "json_record.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

#include "base/file.hpp"
#include "base/text.hpp"

namespace annulus::data {

namespace {

using nlohmann::json;

/// What is wrong with `line` where the parser has stopped, after `read` bytes of it. The parser's own
/// sentence quotes the line, whose bytes may be anything: it is cut to its reason.
std::string syntax_problem(std::string_view line, std::size_t read, std::string_view sentence) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  std::size_t begin = std::min(read, line.size()), end = begin;
  while (begin > 0 && letter(line[begin - 1])) --begin;
  while (end < line.size() && letter(line[end])) ++end;
  const std::string_view word = line.substr(begin, end - begin);
  if (word == "NaN" || word == "Infinity")
    return fmt::format("{} at byte {} is no value of JSON", word, begin + 1);
  sentence = sentence.substr(0, sentence.find("; last read: "));
  for (const std::string_view before : {"] ", " - "})
    if (const auto at = sentence.find(before); at != sentence.npos)
      sentence.remove_prefix(at + before.size());
  if (sentence.starts_with("unexpected end of input")) return "the JSON ends in the middle";
  // The parser stops behind a character of bytes that are no UTF-8.
  const std::size_t at = std::min(std::max(read, std::size_t{1}), text_prefix(line) + 1);
  return fmt::format("no JSON at byte {} ({})", at, sentence);
}

/// Takes the text of a record that lies inside `around_` arrays.
class RecordReader final : public nlohmann::json_sax<json> {
 public:
  /// first_only: reads no further than the end of the first record.
  RecordReader(std::string_view line, int around, bool first_only)
      : line_(line), around_(around), first_only_(first_only) {}

  /// The record, when the parser has come to its end.
  JsonRecord take() {
    if (problem_.empty() && !object_) problem_ = "it is no JSON object";
    if (problem_.empty() && type_.empty()) problem_ = "it has no key \"text\"";
    if (problem_.empty() && type_ != "a string")
      problem_ = fmt::format("its \"text\" is {}, no string", type_);
    return {.text = std::move(text_), .problem = std::move(problem_)};
  }
  /// Whether it has come to the end of a record, or to the end of the text inside of one.
  bool begins_record() const {
    return object_ && (whole_ ? problem_.empty() && type_ == "a string" : ended_ && has_text_);
  }

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a boolean"); }
  bool number_integer(std::int64_t) override { return value("a number"); }
  bool number_unsigned(std::uint64_t) override { return value("a number"); }
  bool number_float(double, const std::string&) override { return value("a number"); }
  bool binary(json::binary_t&) override { return value("binary"); }
  bool string(std::string& text) override {
    if (is_text_) text_ = std::move(text);
    return value("a string");
  }
  bool start_object(std::size_t) override {
    if (depth_ == around_) object_ = true;
    return enter("an object");
  }
  bool start_array(std::size_t) override { return enter("an array"); }
  bool key(std::string& name) override {
    is_text_ = depth_ == around_ + 1 && name == "text";
    has_text_ = has_text_ || is_text_;
    return true;
  }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool parse_error(std::size_t read, const std::string&, const json::exception& error) override {
    ended_ = read >= line_.size();
    if (problem_.empty()) problem_ = syntax_problem(line_, read, error.what());
    return false;
  }

 private:
  bool value(const char* type) {
    if (std::exchange(is_text_, false)) type_ = type;
    return true;
  }
  bool enter(const char* type) {
    value(type);
    if (++depth_ > deepest_nesting)
      problem_ = fmt::format("it has more than {} levels of objects and arrays", deepest_nesting);
    return problem_.empty() && (depth_ > around_ || type == std::string_view("an array"));
  }
  bool leave() {
    whole_ = --depth_ == around_;
    return !whole_ || !first_only_;
  }

  std::string_view line_;
  int around_, depth_ = 0;
  bool first_only_;
  bool is_text_ = false, has_text_ = false;  // the key "text" comes next; it has come
  bool object_ = false, whole_ = false, ended_ = false;
  std::string text_, problem_;
  std::string_view type_;  // of the value of "text"
};

}  // namespace

JsonRecord parse_record(std::string_view line) {
  while (line.ends_with('\n') || line.ends_with('\r')) line.remove_suffix(1);
  // The parser takes a NUL for the end of its input.
  if (const auto nul = line.find('\0'); nul != line.npos)
    return {.text = {}, .problem = fmt::format("a NUL at byte {}", nul + 1)};
  RecordReader reader(line, 0, false);
  json::sax_parse(line, &reader);
  return reader.take();
}

bool begins_with_record(std::string_view front, int around) {
  RecordReader reader(front, around, true);
  json::sax_parse(front, &reader);
  return reader.begins_record();
}

}  // namespace annulus::data
