#include "common/arguments.hpp"

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace annulus::app {
namespace {

/// "section.key=value", with or without blanks around the sign.
bool is_setting(std::string_view text) {
  constexpr std::string_view of_keys = "abcdefghijklmnopqrstuvwxyz0123456789_.";
  const std::string_view key = text.substr(0, std::min(text.find('='), text.find(' ')));
  return text.find('=') != text.npos && key.find('.', 1) != key.npos &&
         key.find_first_not_of(of_keys) == key.npos;
}

/// `--set A=1 B=2` as `--set A=1 --set B=2`.
void repeat_set(std::vector<std::string>& texts) {
  bool of_set = false;  // the text before is a value of --set
  for (std::size_t i = 1; i < texts.size() && texts[i] != "--"; ++i) {
    if (texts[i] == "--set") {
      ++i;
      of_set = true;
    } else if (of_set && is_setting(texts[i])) {
      texts.insert(texts.begin() + static_cast<std::ptrdiff_t>(i), "--set");
      ++i;
    } else {
      of_set = texts[i].starts_with("--set=");
    }
  }
}

bool has_set(const CLI::App& app) {
  return app.get_option_no_throw("--set") != nullptr ||
         std::ranges::any_of(app.get_subcommands({}),
                             [](const CLI::App* command) { return has_set(*command); });
}

}  // namespace

Arguments::Arguments(const CLI::App& app, int argc, char** argv) : texts_(argv, argv + argc) {
  if (has_set(app)) repeat_set(texts_);
  for (std::string& text : texts_) pointers_.push_back(text.data());
  pointers_.push_back(nullptr);
}

}  // namespace annulus::app
