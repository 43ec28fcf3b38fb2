#pragma once

#include <filesystem>
#include <span>
#include <string>

#include <annulus/training/run/config.hpp>

namespace annulus::training {

/// What to warn of where `file`, from which `config` was read, is the config.toml of a run, and run.folder is
/// a relative path that leads to another folder from here: a second run would begin in silence. Empty where
/// all is well, or one of `overrides` (--set) says which folder is meant.
std::string other_folder_warning(const std::filesystem::path& file, std::span<const std::string> overrides,
                                 const Config& config);

}  // namespace annulus::training
