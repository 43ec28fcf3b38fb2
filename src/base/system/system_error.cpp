#include "base/system/system_error.hpp"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <system_error>
#include <utility>

#include <annulus/base/error.hpp>

namespace annulus {

namespace {

constexpr std::pair<int, const char*> advice[] = {
    {ENOENT, "check the path"},
    {ENOTDIR, "a part of the path is no directory; check the path"},
    {EISDIR, "give the path of a file"},
    {EACCES, "check the permissions of the file and its folder"},
    {EPERM, "check the permissions of the file and its folder"},
    {EROFS, "choose a folder on a writable file system"},
    {EAGAIN, "another program has locked the file; wait until it has closed it"},
    {ENOSPC, "free some space or write elsewhere"},
    {EDQUOT, "free some space or write elsewhere"},
    {EFBIG, "raise the limit on file sizes (ulimit -f)"},
    {EMFILE, "raise the limit on open files (ulimit -n)"},
    {ENFILE, "raise the limit on open files (ulimit -n)"}};

}  // namespace

std::string system_error_text(int error) {
  const auto* found = std::ranges::find(advice, error, &std::pair<int, const char*>::first);
  const char* remedy = found == std::end(advice) ? "check the file system" : found->second;
  return std::generic_category().message(error) + ": " + remedy;
}

void require_system(bool succeeded, std::string_view action, const std::filesystem::path& path) {
  if (succeeded) return;
  const int error = errno;
  fail("cannot {} '{}': {}", action, path.string(), system_error_text(error));
}

}  // namespace annulus
