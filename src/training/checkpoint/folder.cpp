#include "training/checkpoint/folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include <annulus/base/error.hpp>

#include "base/file.hpp"
#include "base/parse_number.hpp"
#include "training/checkpoint/manifest.hpp"
#include "training/io/atomic.hpp"
#include "training/io/logging.hpp"

namespace annulus::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view prefix = "step-";

/// The step that a name of this form is of.
std::optional<std::int64_t> step_of(std::string_view name, std::string_view suffix) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  name.remove_suffix(suffix.size());
  const auto step = parse_number<std::int64_t>(name);
  return step.value_or(-1) < 0 ? std::nullopt : step;
}

void remove_or_warn(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) logging::warn("the old checkpoint {} could not be removed: {}", path.string(), error.message());
}

}  // namespace

CheckpointFolder::CheckpointFolder(fs::path folder, const Retention& retention)
    : folder_(std::move(folder)), retention_(retention) {
  require_no_link(folder_, "the checkpoint folder");
}

std::string CheckpointFolder::name_of(std::int64_t step) {
  return fmt::format("{}{:08}", prefix, step);
}

void CheckpointFolder::remove_leftovers() const {
  std::error_code error;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    const std::string_view of = std::string_view(name).substr(0, name.rfind(".tmp-"));
    if ((step_of(of, "") && io::is_temporary_name(name, of)) || step_of(name, early_suffix))
      found.push_back(entry.path());
  }
  for (const fs::path& path : found) fs::remove_all(path, error);
}

fs::path CheckpointFolder::begin(std::int64_t step) const {
  std::error_code error;
  require_no_link(folder_, "the checkpoint folder");
  fs::create_directories(folder_, error);
  require(!error, "the checkpoint folder {} cannot be made ({}): check its permissions or set run.folder",
          folder_.string(), error.message());
  const fs::path made = fs::absolute(io::temporary_name(path_of(step)));
  // Before the message is made, which a call among its arguments need not be.
  const bool is_new = fs::create_directory(made, error);
  require(is_new && !error,
          "the checkpoint folder {} cannot be made ({}): check its permissions, and the room on the disk",
          made.string(), error ? error.message() : "it exists");
  return made;
}

void CheckpointFolder::commit(const fs::path& folder, std::int64_t step) {
  const fs::path name = path_of(step);
  std::error_code error;
  if (fs::exists(name, error)) {
    // Nobody writes the same state twice: what is in the way was damaged, or is another run's.
    require(passed_over_.contains(step) || !fs::exists(name / manifest_file, error),
            "{} was saved meanwhile by another run: two runs use one run.folder; stop one of them, and give "
            "each its own",
            name.string());
    const fs::path aside = io::temporary_name(name);
    fs::rename(name, aside, error);
    require(!error, "the damaged checkpoint {} cannot be replaced ({}): check its permissions", name.string(),
            error.message());
    remove_or_warn(aside);
  }
  io::rename_folder(folder, name);
  passed_over_.erase(step);
  remove_old(step);
}

void CheckpointFolder::discard(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
}

void CheckpointFolder::remove_old(std::int64_t newest) const {
  auto saved = steps();
  // Later ones were passed over when the run started (damaged): they neither count nor go.
  std::erase_if(saved, [&](std::int64_t step) { return step > newest; });
  for (std::size_t i = 0; i + static_cast<std::size_t>(retention_.keep) < saved.size(); ++i) {
    if (retention_.keep_every > 0 && saved[i] % retention_.keep_every == 0) continue;
    std::error_code error;
    // Renamed first: a folder that is being removed is no checkpoint.
    if (const fs::path folder = path_of(saved[i]); fs::exists(folder, error)) {
      const fs::path aside = io::temporary_name(folder);
      fs::rename(folder, aside, error);
      remove_or_warn(error ? folder : aside);
    }
  }
}

std::vector<std::int64_t> CheckpointFolder::steps() const {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    if (const auto step = step_of(name, "")) {
      std::error_code missing;
      if (fs::exists(entry.path() / manifest_file, missing)) steps.push_back(*step);
    }
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

void CheckpointFolder::reject_older() const {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error))
    require(!step_of(entry.path().filename().string(), ".h5"),
            "'{}' is a checkpoint of version 1 or 2, and checkpoints of version {} are read: go on with the "
            "Annulus that wrote it, or start anew in another run.folder",
            entry.path().string(), manifest_version);
}

std::optional<Checkpoint> CheckpointFolder::newest_good(std::optional<std::int64_t> before) {
  const auto saved = steps();
  for (auto step = saved.rbegin(); step != saved.rend(); ++step) {
    if (before && *step >= *before) continue;
    try {
      return Checkpoint(path_of(*step));
    } catch (const Error& error) {
      logging::warn("passing over a damaged checkpoint: {}", error.what());
      pass_over(*step);
    }
  }
  require(saved.empty(),
          "none of the {} checkpoints in {} can be read: "
          "start anew in another run.folder, or restore one of them",
          saved.size(), folder_.string());
  reject_older();
  return std::nullopt;
}

std::optional<Checkpoint> newest_good(const fs::path& folder) {
  return CheckpointFolder(folder, {}).newest_good();
}

}  // namespace annulus::checkpoint
