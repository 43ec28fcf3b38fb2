#include <annulus/io/atomic.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include <annulus/base/error.hpp>

#include "descriptor.hpp"
#include "system_error.hpp"

namespace annulus::io {

namespace {

void sync(const std::filesystem::path& path, int flags) {
  const detail::Descriptor descriptor(::open(path.c_str(), flags | O_CLOEXEC));
  // File systems without fsync for folders say EINVAL; there is nothing more to be done on those.
  const bool synced = descriptor.get() >= 0 && (::fsync(descriptor.get()) == 0 || errno == EINVAL);
  detail::require_system(synced, "bring to the disk", path);
}

/// The file that a rename is to replace: behind symbolic links, which stay, and never a device or a pipe.
std::filesystem::path target_of(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path target =
      std::filesystem::is_symlink(path, error) ? std::filesystem::weakly_canonical(path, error) : path;
  const auto status = std::filesystem::status(target, error);
  require(!std::filesystem::exists(status) || std::filesystem::is_regular_file(status),
          "cannot replace '{}': it is no regular file: choose another name", path.string());
  return target;
}

std::filesystem::path temporary_of(std::filesystem::path path) {
  path += ".tmp-" + std::to_string(::getpid());
  return path;
}

}  // namespace

void require_writable(const std::filesystem::path& name) {
  const std::filesystem::path path = target_of(name), temporary = temporary_of(path);
  const detail::Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  detail::require_system(file.get() >= 0, "write", path);
  ::unlink(temporary.c_str());
}

void write_atomically(const std::filesystem::path& name,
                      const std::function<void(const std::filesystem::path&)>& write) {
  const std::filesystem::path path = target_of(name), temporary = temporary_of(path);
  try {
    write(temporary);
    sync(temporary, O_RDONLY);
    detail::require_system(::rename(temporary.c_str(), path.c_str()) == 0, "replace", path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."), O_RDONLY | O_DIRECTORY);
}

void write_text_atomically(const std::filesystem::path& path, std::string_view text) {
  write_atomically(path, [&](const std::filesystem::path& temporary) {
    const detail::Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    detail::require_system(file.get() >= 0, "write", path);
    detail::require_system(detail::write_all(file.get(), text), "write", path);
  });
}

std::string read_text(const std::filesystem::path& path) {
  const detail::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  detail::require_system(file.get() >= 0, "open", path);
  std::string text;
  constexpr std::size_t piece = std::size_t{1} << 20;
  for (;;) {
    const std::size_t size = text.size();
    text.resize(size + piece);
    ssize_t count;
    do {
      count = ::read(file.get(), text.data() + size, piece);
    } while (count < 0 && errno == EINTR);
    detail::require_system(count >= 0, "read", path);
    text.resize(size + static_cast<std::size_t>(count));
    if (count == 0) return text;
  }
}

}  // namespace annulus::io
