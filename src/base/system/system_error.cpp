#include "base/system/system_error.hpp"

#include <cerrno>
#include <system_error>

#include <annulus/base/error.hpp>

namespace annulus {

namespace {

const char* advice(int error) {
  switch (error) {
    case ENOENT:
      return "check the path";
    case ENOTDIR:
      return "a part of the path is no directory; check the path";
    case EISDIR:
      return "give the path of a file";
    case EACCES:
    case EPERM:
      return "check the permissions of the file and its folder";
    case EROFS:
      return "choose a folder on a writable file system";
    case EAGAIN:
      return "another program has locked the file; wait until it has closed it";
    case ENOSPC:
    case EDQUOT:
      return "free some space or write elsewhere";
    case EFBIG:
      return "raise the limit on file sizes (ulimit -f)";
    case EMFILE:
    case ENFILE:
      return "raise the limit on open files (ulimit -n)";
    default:
      return "check the file system";
  }
}

}  // namespace

std::string system_error_text(int error) {
  return std::generic_category().message(error) + ": " + advice(error);
}

void require_system(bool succeeded, std::string_view action, const std::filesystem::path& path) {
  if (succeeded) return;
  const int error = errno;
  fail("cannot {} '{}': {}", action, path.string(), system_error_text(error));
}

}  // namespace annulus
