#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace annulus::checkpoint {

/// Files that belong to every checkpoint of a run and never change: the tokenizer's, for example. They are
/// stored once, in the folder model_files of the run, or of a checkpoint that is no run's
/// (docs/formats/checkpoint.md).
struct KeptFiles {
  std::int64_t vocabulary = 0;                               ///< of the model that they belong to
  std::map<std::string, std::string, std::less<>> contents;  ///< by name

  bool operator==(const KeptFiles&) const = default;
};

/// The folder's name, and that of the manifest in it, which has names, sizes and checksums.
inline constexpr const char* kept_files_folder = "model_files";
inline constexpr const char* kept_files_manifest = "files.json";

/// Where files are kept for a checkpoint: in its folder, else in that of the run that it lies in. Empty where
/// there are none.
std::filesystem::path kept_files_of(const std::filesystem::path& checkpoint);

/// Reads what kept_files_of has found. Throws Error, one line that names the file, when one is missing or not
/// what the manifest says.
KeptFiles read_kept_files(const std::filesystem::path& folder);

/// Puts the files into the folder model_files of `around`, in place of what was kept there; none: removes it.
/// The folder is there with all of its files or not at all. Throws Error that names it.
void write_kept_files(const std::filesystem::path& around, const KeptFiles& files);

}  // namespace annulus::checkpoint
