#pragma once

#include <filesystem>

#include "base/system/descriptor.hpp"

namespace annulus::io {

/// A folder that is there with all of its files or not at all. It is filled under another name beside its
/// own (temporary_name), and goes with this object unless commit was called. What a killed process has left
/// under such a name goes when a NewFolder of the same path is made; a folder that another process still
/// fills stays.
class NewFolder {
 public:
  /// Throws Error that names `path` when something stands there, and when the folder around it is missing or
  /// must not be written.
  explicit NewFolder(const std::filesystem::path& path);
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder();

  /// Where its files are to be written until commit.
  const std::filesystem::path& temporary() const { return temporary_; }

  /// Gives it its name (rename_folder). Throws Error when something stands there by now.
  void commit();

 private:
  void require_free() const;

  std::filesystem::path path_, temporary_;
  bool committed_ = false;
  Descriptor held_{-1};  // of the folder, whose lock says that it is being filled
};

}  // namespace annulus::io
