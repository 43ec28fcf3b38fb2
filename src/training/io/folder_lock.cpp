#include "training/io/folder_lock.hpp"

#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <annulus/base/error.hpp>

#include "base/file.hpp"

namespace annulus::io {

FolderLock::FolderLock(const std::filesystem::path& folder, const LockFile& options)
    : file_(std::filesystem::absolute(folder / options.file)) {
  if (::access(folder.c_str(), W_OK) != 0 && (errno == EACCES || errno == EROFS)) {
    missing_ = std::strerror(errno);
    return;
  }
  held_ = open_own_file(file_);
  if (::flock(held_.get(), LOCK_EX | LOCK_NB) == 0) return;
  const int reason = errno;
  require(reason != EWOULDBLOCK, "{}", options.in_use);
  missing_ = std::strerror(reason);
}

bool FolderLock::in_place() const {
  struct stat held {
  }, there{};
  if (held_.get() < 0 || ::fstat(held_.get(), &held) != 0) return true;
  return ::stat(file_.c_str(), &there) == 0 && there.st_dev == held.st_dev && there.st_ino == held.st_ino;
}

}  // namespace annulus::io
