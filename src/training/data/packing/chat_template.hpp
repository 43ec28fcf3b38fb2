#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace annulus::data {

/// A part of a document.
struct TextPart {
  std::string text;
  bool counts = true;  ///< its tokens are targets of the loss
};

/// How the messages of a conversation become text, and which of it counts (docs/formats/token-shards.md).
class ChatTemplate {
 public:
  /// Throws Error that names the file and what is wrong.
  static ChatTemplate read(const std::filesystem::path& file);
  static ChatTemplate parse(std::string_view text, const std::string& origin);

  /// The text of a record's conversation.
  struct Conversation {
    std::vector<TextPart> parts;
    std::string problem;  ///< why there is none, to follow "line 3: "; empty when there is
  };
  /// Takes a line of JSON.
  Conversation conversation_of(std::string_view line) const;

  /// Tells templates apart.
  const std::string& fingerprint() const { return fingerprint_; }

 private:
  struct Role {
    std::string before, after;
    bool counts = false;  // what the role says, and `after`
  };
  std::vector<std::string> names_of_roles() const;

  std::string messages_ = "messages", role_ = "role", content_ = "content";  // keys of records
  std::string start_;
  std::map<std::string, Role, std::less<>> roles_;
  std::string fingerprint_;
};

}  // namespace annulus::data
