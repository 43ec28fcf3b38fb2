#include <annulus/io/file_lock.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include <annulus/base/error.hpp>

#include "descriptor.hpp"
#include "system_error.hpp"

namespace annulus::io {

FileLock::FileLock(const std::filesystem::path& path, const std::string& in_use) {
  std::error_code error;
  const bool is_folder = std::filesystem::is_directory(path, error);
  // Folders are opened for reading alone; on network file systems a lock may need a file open for writing.
  const int flags = is_folder ? O_RDONLY | O_DIRECTORY : O_RDWR | O_CREAT | O_NOFOLLOW;
  detail::Descriptor descriptor(::open(path.c_str(), flags | O_CLOEXEC, 0666));
  detail::require_system(descriptor.get() >= 0, "lock", path);
  if (::flock(descriptor.get(), LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    require(reason != EWOULDBLOCK, "{}", in_use);
    missing_ = std::strerror(reason);
  }
  descriptor_ = descriptor.release();
}

FileLock::~FileLock() {
  ::close(descriptor_);
}

}  // namespace annulus::io
