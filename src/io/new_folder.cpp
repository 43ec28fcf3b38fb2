#include <annulus/io/new_folder.hpp>

#include <annulus/base/error.hpp>
#include <annulus/io/atomic.hpp>

#include <system_error>

namespace annulus::io {

namespace fs = std::filesystem;

NewFolder::NewFolder(const fs::path& path) : path_(path.lexically_normal()) {
  if (!path_.has_filename()) path_ = path_.parent_path();  // "folder/"
  require_free();
  temporary_ = temporary_name(path_);
  std::error_code error;
  const bool made = fs::create_directory(temporary_, error);
  require(made && !error,
          "the folder '{}' cannot be made ({}): make the folder around it, or check its permissions",
          path_.string(), error ? error.message() : "it exists");
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
