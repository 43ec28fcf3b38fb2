#include "base/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <annulus/base/error.hpp>

#include "base/system/system_error.hpp"

namespace annulus {

namespace fs = std::filesystem;

namespace {

std::size_t read_some(int file, std::span<char> out, const std::string& path) {
  for (;;) {
    const ssize_t count = ::read(file, out.data(), out.size());
    if (count < 0 && errno == EINTR) continue;
    require_system(count >= 0, "read", path);
    return static_cast<std::size_t>(count);
  }
}

[[noreturn]] void fail_too_large(const std::string& path, const FileKind& kind) {
  fail("'{}' has more than {} MiB, the most that {} may have: give the right file", path,
       kind.most_bytes / kinds::mib, kind.name);
}

/// All that a descriptor gives. Sizes that the system tells are not believed: those of /proc are 0.
std::string read_all(int file, std::uint64_t expected, const FileKind& kind, const std::string& path) {
  std::string text;
  std::size_t size = 0;
  for (;;) {
    if (size == text.size()) text.resize(std::max<std::size_t>(size + (std::size_t{1} << 16), expected + 1));
    const std::size_t count = read_some(file, std::span(text).subspan(size), path);
    size += count;
    if (size > kind.most_bytes) fail_too_large(path, kind);
    if (count > 0) continue;
    text.resize(size);
    return text;
  }
}

[[noreturn]] void fail_link(const fs::path& path, std::string_view what) {
  fail("'{}' is a symbolic link, which {} must not be (it may lead out of the folder): remove the link",
       path.string(), what);
}

/// Gives the status of an open file, which is a regular one.
struct stat require_regular(const Descriptor& file, const fs::path& path, std::string_view wanted) {
  struct stat status {};
  require_system(::fstat(file.get(), &status) == 0, "open", path);
  require(!S_ISDIR(status.st_mode), "'{}' is a folder: give {}", path.string(), wanted);
  require(S_ISREG(status.st_mode), "'{}' is no regular file (a pipe or a device): give {}", path.string(),
          wanted);
  return status;
}

Descriptor open_regular(const fs::path& path, int flags, std::string_view what, Links links) {
  const int follow = links == Links::refuse ? O_NOFOLLOW : 0;
  // O_NONBLOCK: opening never waits for the other end of a pipe; it changes nothing for regular files.
  Descriptor file(::open(path.c_str(), flags | follow | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666));
  if (file.get() < 0 && errno == ELOOP && links == Links::refuse) fail_link(path, what);
  return file;
}

}  // namespace

InputFile::InputFile(const fs::path& path, const FileKind& kind, Links links)
    : path_(path.string()), file_(open_regular(path, O_RDONLY, kind.name, links)) {
  require_system(file_.get() >= 0, "open", path);
  size_ = static_cast<std::uint64_t>(require_regular(file_, path, kind.name).st_size);
}

std::size_t InputFile::read(std::span<char> out) {
  return read_some(file_.get(), out, path_);
}

std::size_t InputFile::read_at(std::uint64_t at, std::span<std::byte> out) const {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t count =
        ::pread(file_.get(), out.data() + done, out.size() - done, static_cast<off_t>(at + done));
    if (count < 0 && errno == EINTR) continue;
    require_system(count >= 0, "read", path_);
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  return done;
}

std::string read_text(const fs::path& path, const FileKind& kind, Links links) {
  const InputFile file(path, kind, links);
  if (file.size() > kind.most_bytes) fail_too_large(file.path(), kind);
  return read_all(file.descriptor(), file.size(), kind, file.path());
}

std::string read_standard_input(const FileKind& kind) {
  return read_all(STDIN_FILENO, 0, kind, "standard input");
}

LineReader::LineReader(const fs::path& path, const FileKind& kind, Links links)
    : file_(path, kind, links), kind_(kind) {}

bool LineReader::next(std::string& line) {
  std::size_t seen = begin_;
  for (;;) {
    const std::size_t end = buffer_.find('\n', seen);
    complete_ = end != buffer_.npos;
    if (complete_) {
      line.assign(buffer_, begin_, end - begin_);
      begin_ = end + 1;
      ++number_;
      return true;
    }
    buffer_.erase(0, begin_);
    begin_ = 0;
    seen = buffer_.size();
    require(
        seen <= kind_.most_bytes,
        "'{}', line {}: it has more than {} MiB, the most that a line of {} may have: give the right file",
        file_.path(), number_ + 1, kind_.most_bytes / kinds::mib, kind_.name);
    buffer_.resize(seen + (std::size_t{1} << 16));
    buffer_.resize(seen + file_.read(std::span(buffer_).subspan(seen)));
    if (buffer_.size() > seen) continue;
    if (buffer_.empty()) return false;
    line.swap(buffer_);
    buffer_.clear();
    ++number_;
    return true;
  }
}

Descriptor open_own_file(const fs::path& path, bool truncate) {
  const int flags = O_RDWR | O_CREAT | O_APPEND | (truncate ? O_TRUNC : 0);
  Descriptor file = open_regular(path, flags, "a file of Annulus", Links::refuse);
  require_system(file.get() >= 0, "write", path);
  require_regular(file, path, "another folder, or remove it");
  return file;
}

void require_no_link(const fs::path& path, std::string_view what) {
  std::error_code error;
  if (fs::is_symlink(fs::symlink_status(path, error))) fail_link(path, what);
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == name.npos;
}

}  // namespace annulus
