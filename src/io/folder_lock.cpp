#include <annulus/io/folder_lock.hpp>

#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <annulus/base/error.hpp>
#include <annulus/base/file.hpp>

namespace annulus::io {

FolderLock::FolderLock(const std::filesystem::path& folder, const Options& options)
    : file_(std::filesystem::absolute(folder / options.file)) {
  if (::access(folder.c_str(), W_OK) != 0 && (errno == EACCES || errno == EROFS)) {
    missing_ = std::strerror(errno);
    return;
  }
  Descriptor descriptor = open_own_file(file_);
  if (::flock(descriptor.get(), LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    require(reason != EWOULDBLOCK, "{}", options.in_use);
    missing_ = std::strerror(reason);
  }
  descriptor_ = descriptor.release();
}

bool FolderLock::in_place() const {
  struct stat held {
  }, there{};
  if (descriptor_ < 0 || ::fstat(descriptor_, &held) != 0) return true;
  return ::stat(file_.c_str(), &there) == 0 && there.st_dev == held.st_dev && there.st_ino == held.st_ino;
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace annulus::io
