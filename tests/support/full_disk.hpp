#pragma once

#include <sys/mount.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "support/temporary_folder.hpp"

namespace annulus::test {

/// A folder on a file system of its own with room for `bytes`; needs the right to mount (root, most
/// containers not).
class SmallFileSystem {
 public:
  explicit SmallFileSystem(std::int64_t bytes) {
    const std::string options = "size=" + std::to_string(bytes);
    mounted_ = ::mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, options.c_str()) == 0;
  }
  SmallFileSystem(const SmallFileSystem&) = delete;
  SmallFileSystem& operator=(const SmallFileSystem&) = delete;
  ~SmallFileSystem() {
    if (mounted_) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }

  /// False when this process may not mount; then the folder is an ordinary one.
  bool mounted() const { return mounted_; }

  /// Makes the file system read-only.
  bool make_read_only() {
    return ::mount(nullptr, folder_.path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0;
  }

  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
  bool mounted_ = false;
};

/// While it lives, files of this process cannot grow beyond `bytes`: writing fails with EFBIG, as on a full
/// disk it fails with ENOSPC, and needs no rights.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(std::int64_t bytes) {
    if (::getrlimit(RLIMIT_FSIZE, &before_) != 0) throw std::runtime_error("no getrlimit");
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limited{static_cast<rlim_t>(bytes), before_.rlim_max};
    if (::setrlimit(RLIMIT_FSIZE, &limited) != 0) throw std::runtime_error("no setrlimit");
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

}  // namespace annulus::test
