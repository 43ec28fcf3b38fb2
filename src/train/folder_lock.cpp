#include "train/folder_lock.hpp"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include <annulus/base/error.hpp>

namespace annulus::train {

FolderLock::FolderLock(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  require(!error, "run.folder = '{}' cannot be made ({}): check its permissions or choose another",
          folder.string(), error.message());
  const std::filesystem::path file = folder / "run.lock";
  descriptor_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  require(descriptor_ >= 0,
          "run.folder = '{}' cannot be written ({}): check its permissions or choose another",
          folder.string(), std::strerror(errno));
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  const int reason = errno;
  if (reason == EWOULDBLOCK) {
    ::close(descriptor_);
    fail("run.folder = '{}' is in use by another run (it holds {}): wait for it, or choose another folder",
         folder.string(), file.string());
  }
  spdlog::warn("{} cannot be locked ({}): see to it that no other run uses this folder", file.string(),
               std::strerror(reason));
}

FolderLock::~FolderLock() {
  ::close(descriptor_);
}

}  // namespace annulus::train
