#include "training/io/atomic.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <tuple>

#include <annulus/base/error.hpp>

#include "base/system/system_error.hpp"

namespace annulus::io {

namespace {

void sync(const Descriptor& descriptor, const std::filesystem::path& path) {
  // File systems without fsync for folders say EINVAL; there is nothing more to be done on those.
  const bool synced = descriptor.get() >= 0 && (::fsync(descriptor.get()) == 0 || errno == EINVAL);
  require_system(synced, "bring to the disk", path);
}

void sync_folder(const std::filesystem::path& folder) {
  sync(Descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)), folder);
}

/// The folder in which `path` stands.
std::filesystem::path folder_around(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

/// The file that a rename is to replace: behind symbolic links, which stay, and never a device or a pipe.
std::filesystem::path target_of(const std::filesystem::path& path, Links links) {
  if (links == Links::refuse) require_no_link(path, "a file of Annulus");
  std::error_code error;
  const std::filesystem::path target =
      std::filesystem::is_symlink(path, error) ? std::filesystem::weakly_canonical(path, error) : path;
  const auto status = std::filesystem::status(target, error);
  require(!std::filesystem::exists(status) || std::filesystem::is_regular_file(status),
          "cannot replace '{}': it is no regular file: choose another name", path.string());
  return target;
}

/// A new, empty file beside `path`, which goes with this object unless it was renamed. Its name cannot be
/// guessed, and nothing of that name, a link least of all, is used: others may write to the folder.
class Temporary {
 public:
  explicit Temporary(const std::filesystem::path& path) : name_(temporary_name(path)) {
    constexpr int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    file_ = Descriptor(::open(name_.c_str(), flags, 0666));
    require_system(file_.get() >= 0, "write", path);
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() {
    if (!renamed_) ::unlink(name_.c_str());
  }

  const std::filesystem::path& name() const { return name_; }
  const Descriptor& file() const { return file_; }

  void rename_to(const std::filesystem::path& path) {
    struct stat made {
    }, there{};
    const bool found = ::fstat(file_.get(), &made) == 0 && ::lstat(name_.c_str(), &there) == 0;
    require_system(found, "replace", path);
    require(made.st_dev == there.st_dev && made.st_ino == there.st_ino,
            "cannot replace '{}': somebody has put another file in place of '{}': "
            "see who can write to the folder",
            path.string(), name_.string());
    require_system(::rename(name_.c_str(), path.c_str()) == 0, "replace", path);
    renamed_ = true;
  }

 private:
  std::filesystem::path name_;
  Descriptor file_{-1};
  bool renamed_ = false;
};

}  // namespace

std::filesystem::path temporary_name(const std::filesystem::path& path) {
  std::array<std::uint64_t, 2> random{};
  const bool drawn = ::getrandom(random.data(), sizeof random, 0) == ssize_t{sizeof random};
  require_system(drawn, "draw a random name beside", path);
  std::filesystem::path name = path;
  return name += fmt::format(".tmp-{:016x}{:016x}", random[0], random[1]);
}

bool is_temporary_name(std::string_view name, std::string_view of) {
  constexpr std::string_view mark = ".tmp-", digits = "0123456789abcdef";
  if (!name.starts_with(of) || !name.substr(of.size()).starts_with(mark)) return false;
  const std::string_view random = name.substr(of.size() + mark.size());
  return random.size() == 32 && random.find_first_not_of(digits) == random.npos;
}

void require_writable(const std::filesystem::path& name) {
  const Temporary temporary(target_of(name, Links::follow));
}

void write_atomically(const std::filesystem::path& name,
                      const std::function<void(const std::filesystem::path&)>& write, Links links) {
  const std::filesystem::path path = target_of(name, links);
  Temporary temporary(path);
  write(temporary.name());
  sync(temporary.file(), temporary.name());
  temporary.rename_to(path);
  sync_folder(folder_around(path));
}

void write_text_atomically(const std::filesystem::path& path, std::string_view text, Links links) {
  write_atomically(
      path,
      [&](const std::filesystem::path& temporary) {
        const Descriptor file = open_own_file(temporary, true);
        require_system(write_all(file.get(), text), "write", path);
      },
      links);
}

Descriptor new_file(const std::filesystem::path& path) {
  constexpr int flags =
      O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;  // waits for no pipe
  Descriptor file(::open(path.c_str(), flags, 0666));
  require_system(file.get() >= 0, "write", path);
  return file;
}

bool write_at(int descriptor, std::uint64_t at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    at += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return true;
}

void rename_folder(const std::filesystem::path& from, const std::filesystem::path& to) {
  sync_folder(from);
  require_system(::rename(from.c_str(), to.c_str()) == 0, "make", to);
  sync_folder(folder_around(to));
}

void append_record(int descriptor, const std::string& path, std::string_view record) {
  const off_t end = ::lseek(descriptor, 0, SEEK_END);
  if (write_all(descriptor, record)) return;
  const int error = errno;
  if (end >= 0) std::ignore = ::ftruncate(descriptor, end);
  fail("cannot write a record to '{}': {}", path, system_error_text(error));
}

}  // namespace annulus::io
