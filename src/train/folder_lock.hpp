#pragma once

#include <filesystem>

namespace annulus::train {

/// Holds a run folder for one run: an advisory lock (flock) on its file run.lock, which the operating system
/// takes back when the process ends, however it ends.
class FolderLock {
 public:
  /// Makes the folder when it is missing. Throws Error when it cannot be made or written, or when another run
  /// holds it. File systems without locks are used without, with a warning.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace annulus::train
