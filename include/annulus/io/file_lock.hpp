#pragma once

#include <filesystem>
#include <string>

namespace annulus::io {

/// Holds a file or a folder against other holders: an advisory lock (flock), which the operating system takes
/// back when the process ends, however it ends.
class FileLock {
 public:
  /// Locks a folder that exists, or a file, which is made when it is missing. Throws Error with the text
  /// `in_use` when another one holds it, and Error naming the path when it cannot be opened.
  FileLock(const std::filesystem::path& path, const std::string& in_use);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  /// Why nothing is held, on a file system without locks; else empty.
  const std::string& missing() const { return missing_; }

 private:
  int descriptor_ = -1;
  std::string missing_;
};

}  // namespace annulus::io
