#include "training/io/new_folder.hpp"

#include <annulus/base/error.hpp>

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <system_error>
#include <vector>

#include "training/io/atomic.hpp"

namespace annulus::io {

namespace fs = std::filesystem;

namespace {

/// The folder, locked; without a descriptor where that is not possible.
Descriptor locked(const fs::path& folder) {
  Descriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (descriptor.get() >= 0 && ::flock(descriptor.get(), LOCK_EX | LOCK_NB) == 0) return descriptor;
  return Descriptor(-1);
}

/// Removes what killed processes have left of `path`. Where the file system has no locks nobody can tell
/// whether a folder is still being filled: it stays.
void remove_leftovers(const fs::path& path) {
  std::vector<fs::path> found;
  std::error_code error;
  const fs::path around = path.has_parent_path() ? path.parent_path() : ".";
  for (fs::directory_iterator entry(around, error), end; !error && entry != end; entry.increment(error))
    if (is_temporary_name(entry->path().filename().string(), path.filename().string()))
      found.push_back(entry->path());
  for (const fs::path& leftover : found)
    if (const Descriptor lock = locked(leftover); lock.get() >= 0) fs::remove_all(leftover, error);
}

}  // namespace

NewFolder::NewFolder(const fs::path& path) : path_(path.lexically_normal()) {
  if (!path_.has_filename()) path_ = path_.parent_path();  // "folder/"
  require_free();
  remove_leftovers(path_);
  // Another process may take the folder for a leftover before it is locked, and remove it.
  constexpr int tries = 10;
  for (int i = 0; i < tries; ++i) {
    temporary_ = temporary_name(path_);
    std::error_code error;
    const bool made = fs::create_directory(temporary_, error);
    require(made && !error,
            "the folder '{}' cannot be made ({}): make the folder around it, or check its permissions",
            path_.string(), error ? error.message() : "it exists");
    errno = 0;
    held_ = locked(temporary_);
    const bool taken = held_.get() < 0 && (errno == EWOULDBLOCK || errno == ENOENT);
    if (!taken && fs::exists(temporary_, error)) return;
  }
  fail(
      "the folder '{}' cannot be made (another process removes '{}'): see who writes to the folder around it",
      path_.string(), temporary_.string());
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(temporary_, ignored);
}

void NewFolder::commit() {
  require_free();
  rename_folder(temporary_, path_);
  committed_ = true;
}

void NewFolder::require_free() const {
  std::error_code error;
  require(!fs::exists(fs::symlink_status(path_, error)), "'{}' exists: choose another name, or remove it",
          path_.string());
}

}  // namespace annulus::io
