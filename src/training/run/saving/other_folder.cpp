#include "training/run/saving/other_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

namespace annulus::training {

namespace fs = std::filesystem;

namespace {

bool is_relative(const std::string& path) {
  return !path.empty() && fs::path(path).is_relative();
}

}  // namespace

std::string other_folder_warning(const fs::path& file, std::span<const std::string> overrides,
                                 const Config& config) {
  std::error_code error;  // what cannot be looked at is not warned of
  const fs::path folder = fs::weakly_canonical(fs::absolute(file, error), error).parent_path();
  const bool of_run = file.filename() == "config.toml" &&
                      (fs::exists(folder / "run.lock", error) || fs::exists(folder / "checkpoints", error));
  const bool wanted = std::ranges::any_of(
      overrides, [](const std::string& text) { return text.find("run.folder") < text.find('='); });
  const fs::path now = fs::weakly_canonical(fs::absolute(config.run.folder, error), error);
  if (!of_run || wanted || now == folder) return {};
  // The other paths that lead elsewhere, and where all lead as they did.
  std::string others, there;
  if (std::ranges::any_of(config.training_shards(), is_relative))
    others += config.data.sets.empty() ? ", --set data.shards=…" : ", --set data.sets=…";
  if (std::ranges::any_of(config.validation_shards(), is_relative, &Config::ValidationShards::path))
    others += ", --set data.validation=…";
  if (is_relative(config.model_from)) others += ", --set model.from=…";
  if (is_relative(config.attention.cluster)) others += ", --set attention.cluster=…";
  const std::string end = fmt::format("/{}", fs::path(config.run.folder).lexically_normal().string());
  if (folder.string().ends_with(end))
    there =
        fmt::format("run the command in {}, or ",
                    folder.string().substr(0, std::max(folder.string().size() - end.size(), std::size_t{1})));
  return fmt::format(
      "{} is the configuration of the run in {}, but its run.folder = '{}' leads to {} from here: this is "
      "another run. To go on with that one {}give --set run.folder={}{}; --set run.folder says so where "
      "another run is meant",
      file.string(), folder.string(), config.run.folder, now.string(), there, folder.string(), others);
}

}  // namespace annulus::training
