#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

namespace annulus::plan::validation {

/// What is wrong with a plan; the first `limit` findings are kept.
class Diagnostics {
 public:
  static constexpr std::size_t limit = 100;

  template <class... Args>
  void add(fmt::format_string<Args...> text, Args&&... args) {
    if (!full()) messages_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }
  void add(const std::vector<std::string>& messages) {
    for (const std::string& message : messages)
      if (!full()) messages_.push_back(message);
  }
  bool empty() const { return messages_.empty(); }
  bool full() const { return messages_.size() >= limit; }
  const std::vector<std::string>& messages() const { return messages_; }
  std::vector<std::string> take() { return std::move(messages_); }

 private:
  std::vector<std::string> messages_;
};

}  // namespace annulus::plan::validation
