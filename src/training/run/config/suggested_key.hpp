#pragma once

#include <optional>
#include <string_view>

namespace annulus::training {

/// The key of the configuration that a name may stand for.
struct SuggestedKey {
  std::string_view key;      ///< "train.lr"
  std::string_view meaning;  ///< as --print-config has it, where other programs call it by the name
};

/// Of `name`, with or without a section: written wrong, in another section or as other programs call it
/// ("learning_rate"). Nothing where no key is near.
std::optional<SuggestedKey> suggest_key(std::string_view name);

}  // namespace annulus::training
