#pragma once

#include <filesystem>
#include <string>

#include "base/system/descriptor.hpp"

namespace annulus::io {

/// Holds a folder against other holders: an advisory lock (flock) on a file in it, which the operating system
/// releases when the process ends, however it ends. The file stays, empty. It is a file and not the folder
/// itself because NFS locks only what is open for writing.
class FolderLock {
 public:
  struct LockFile {
    std::string file;    ///< the name of the lock file; holders with other names do not meet
    std::string in_use;  ///< the message of the Error when another one holds the folder
  };
  /// Locks `folder`, which exists. Throws Error with LockFile::in_use when another one holds it, and Error
  /// that names the lock file when that cannot be opened. A folder that this process cannot write stays as it
  /// is, without a lock.
  FolderLock(const std::filesystem::path& folder, const LockFile& options);

  /// Why nothing is held (a file system without locks, a folder that cannot be written); else empty.
  const std::string& missing() const { return missing_; }

  /// Whether the folder still stands under its name: not deleted, renamed or replaced since it was locked.
  /// True where nothing is held.
  bool in_place() const;

 private:
  std::filesystem::path file_;
  Descriptor held_{-1};
  std::string missing_;
};

}  // namespace annulus::io
