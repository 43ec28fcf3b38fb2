#include "training/run/planner/planned_model.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>
#include <vector>

#include <annulus/prediction/simulator/choose.hpp>

#include "training/run/config/config_table.hpp"
#include "training/run/config/model_description.hpp"
#include "training/run/state/initial_weights/model_from.hpp"

namespace annulus::training {

bool names_model(const std::filesystem::path& path) {
  std::error_code error;
  if (path.extension() == ".json") return true;
  if (std::filesystem::exists(path, error)) return std::filesystem::is_directory(path, error);
  return path.extension() != ".toml" && looks_like_hub_name(path);
}

Config planned_model(const std::filesystem::path& path, int ranks, std::span<const std::string> overrides) {
  Config config = config_of(describe_shape(path));
  if (config.model_positions > 0) config.data.sequence_length = config.model_positions;
  config.run.device = "gpu";
  config.train.dtype = "bf16";
  config.parallel.zero = ranks == 1 ? 0 : 3;  // one rank has nobody to share with
  config.attention.schedule = config.attention.layout = simulator::automatic;
  config.memory.recompute = {std::string(recompute_auto)};
  config.checkpoint.every = 0;
  return Config::parse(config.to_toml(), path.string(), overrides);
}

std::string planned_model_text(const Config& config) {
  std::vector<std::string> texts;
  for (const std::string_view name : planned_model_keys) {
    const auto key =
        std::ranges::find(config_table(), name, [](const Key& of) { return std::string_view(of.name); });
    texts.push_back(fmt::format("{} = {}", name, value_text(*key, config)));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace annulus::training
