#include <annulus/io/folder_lock.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <annulus/base/error.hpp>

#include "descriptor.hpp"
#include "system_error.hpp"

namespace annulus::io {

FolderLock::FolderLock(const std::filesystem::path& folder, const Options& options) {
  if (::access(folder.c_str(), W_OK) != 0 && (errno == EACCES || errno == EROFS)) {
    missing_ = std::strerror(errno);
    return;
  }
  const std::filesystem::path file = folder / options.file;
  detail::Descriptor descriptor(::open(file.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
  detail::require_system(descriptor.get() >= 0, "lock", file);
  if (::flock(descriptor.get(), LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    require(reason != EWOULDBLOCK, "{}", options.in_use);
    missing_ = std::strerror(reason);
  }
  descriptor_ = descriptor.release();
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace annulus::io
