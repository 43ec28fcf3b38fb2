#include "chat_template.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include <annulus/base/error.hpp>

#include "base/file.hpp"
#include "base/text.hpp"
#include "training/io/crc32.hpp"
#include "training/io/json.hpp"

namespace annulus::data {

namespace {

using nlohmann::json;

constexpr FileKind template_file{"a chat template", kinds::mib};

/// Sets `value` from the member `key` of an object, where it has one.
template <class T>
void take(const json& object, const char* key, T& value, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end()) return;
  const bool fits = std::is_same_v<T, bool> ? found->is_boolean() : found->is_string();
  require(fits, "{}: \"{}\" is {}: give {}", where, key, io::shown(*found),
          std::is_same_v<T, bool> ? "true or false" : "a string");
  value = found->get<T>();
}

template <std::size_t n>
void require_keys(const json& object, const std::array<std::string_view, n>& known,
                  const std::string& where) {
  for (const auto& [key, value] : object.items())
    require(std::ranges::find(known, key) != known.end(), "{}: \"{}\" is unknown: known are {}", where, key,
            fmt::join(known, ", "));
}

}  // namespace

ChatTemplate ChatTemplate::read(const std::filesystem::path& file) {
  return parse(read_text(file, template_file), file.string());
}

ChatTemplate ChatTemplate::parse(std::string_view text, const std::string& origin) {
  const std::string where = fmt::format("the chat template '{}'", origin);
  const json all = io::parse_json_object(text, origin);
  require_keys(all, std::to_array<std::string_view>({"messages", "role", "content", "start", "roles"}),
               where);
  ChatTemplate made;
  take(all, "messages", made.messages_, where);
  take(all, "role", made.role_, where);
  take(all, "content", made.content_, where);
  take(all, "start", made.start_, where);
  const json roles = all.value("roles", json::object());
  require(roles.is_object() && !roles.empty(),
          "{} has no \"roles\": give an object with a key for each role, as in {{\"user\": {{\"before\": "
          "\"User: \", \"after\": \"\\n\"}}, \"assistant\": {{…, \"counts\": true}}}}",
          where);
  bool counts = false;
  for (const auto& [name, role] : roles.items()) {
    const std::string of_role = fmt::format("{}, role \"{}\"", where, name);
    require(role.is_object(), "{}: {} is no object with before, after and counts", of_role, io::shown(role));
    require_keys(role, std::to_array<std::string_view>({"before", "after", "counts"}), of_role);
    Role& of = made.roles_[name];
    take(role, "before", of.before, of_role);
    take(role, "after", of.after, of_role);
    take(role, "counts", of.counts, of_role);
    counts = counts || of.counts;
  }
  require(counts, "{} has no role with \"counts\": true: nothing would be learnt", where);
  made.fingerprint_ = fmt::format("crc32:{:08x}", io::crc32_of(std::span<const char>(text)));
  return made;
}

std::vector<std::string> ChatTemplate::names_of_roles() const {
  std::vector<std::string> names;
  for (const auto& [name, role] : roles_) names.push_back(name);
  return names;
}

ChatTemplate::Conversation ChatTemplate::conversation_of(std::string_view line) const {
  while (line.ends_with('\n') || line.ends_with('\r')) line.remove_suffix(1);
  if (line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);  // a byte order mark
  const auto bad = [](std::string problem) {
    return Conversation{.parts = {}, .problem = std::move(problem)};
  };
  json record;
  try {
    record = io::parse_json(line, "the line");
  } catch (const Error& error) {
    return bad(error.what());
  }
  if (!record.is_object()) return bad("it is no JSON object");
  const auto messages = record.find(messages_);
  if (messages == record.end() || !messages->is_array())
    return bad(fmt::format("it has no array \"{}\"", messages_));
  Conversation made;
  const auto add = [&](std::string_view text, bool counts) {
    if (text.empty()) return;
    if (made.parts.empty() || made.parts.back().counts != counts) made.parts.push_back({"", counts});
    made.parts.back().text += text;
  };
  if (!messages->empty()) add(start_, false);
  int number = 0;
  for (const json& message : *messages) {
    ++number;
    const auto text_of = [&](const std::string& key) -> const std::string* {
      const auto found = message.is_object() ? message.find(key) : message.end();
      return found != message.end() && found->is_string() ? found->get_ptr<const std::string*>() : nullptr;
    };
    const std::string *const role = text_of(role_), *const content = text_of(content_);
    if (role == nullptr || content == nullptr)
      return bad(
          fmt::format("its message {} has no string \"{}\"", number, role == nullptr ? role_ : content_));
    const auto known = roles_.find(*role);
    if (known == roles_.end())
      return bad(fmt::format("its message {} has the role {}; those of the chat template are {}", number,
                             io::shown(*role), fmt::join(names_of_roles(), ", ")));
    if (!is_text(*content)) return bad(fmt::format("its message {} has a NUL", number));
    const Role& of = known->second;
    add(of.before, false);
    add(*content, of.counts);
    add(of.after, of.counts);
  }
  return made;
}

}  // namespace annulus::data
