#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <annulus/training/run/config.hpp>

namespace annulus::training {

/// Where the value of a key lives.
using Reference =
    std::variant<bool*, int*, std::int64_t*, float*, double*, std::string*, std::vector<std::string>*,
                 std::vector<Config::DataSet>*, model::NormPlace*, model::QkNorm*, model::Activation*>;

/// When a key has to keep its value.
enum class Fixed : std::uint8_t {
  never,      ///< changes where, how fast or how far a run computes
  in_run,     ///< as long as the run goes on in its folder
  in_lineage  ///< also when a checkpoint starts a run of its own
};

/// One key. Parsing, printing, range checks, suggestions and resuming all go through the table of these.
struct Key {
  const char* name;     ///< "section.key"
  const char* meaning;  ///< for --print-config
  Reference (*reference)(Config&);
  Fixed fixed;
  double minimum = -std::numeric_limits<double>::infinity();
  /// A larger value is a slip, which would end in no memory, in numbers that overflow or in a wait for ever.
  double maximum = std::numeric_limits<double>::infinity();
};

/// All keys, section by section.
const std::vector<Key>& config_table();

/// The value of a key as TOML.
std::string value_text(const Key& key, const Config& config);

/// The key of the configuration that a name may stand for.
struct SuggestedKey {
  std::string_view key;      ///< "train.lr"
  std::string_view meaning;  ///< as --print-config has it, where other programs call it by the name
};

/// Finds the key for `name`, which has a section or none: written wrong, in another section or as other
/// programs call it ("learning_rate"). Nothing where no key is near.
std::optional<SuggestedKey> suggest_key(std::string_view name);

/// Says it: "did you mean 'train.lr' (…)? "; empty where no key is near.
std::string suggested_key(std::string_view name);

/// Suggests a section: "did you mean [train]? "; empty where none is near.
std::string suggested_section(std::string_view name);

}  // namespace annulus::training
