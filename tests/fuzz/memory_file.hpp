#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz.hpp"

namespace annulus::fuzz {

/// A file of these bytes that lives in memory and goes with this object.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : file_(::memfd_create("input", MFD_CLOEXEC)) {
    expect(file_ >= 0, "a file in memory");
    while (!bytes.empty()) {
      const ssize_t count = ::write(file_, bytes.data(), bytes.size());
      expect(count > 0, "room in memory");
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
  }
  MemoryFile(const std::uint8_t* data, std::size_t size) : MemoryFile(text_of(data, size)) {}
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { ::close(file_); }

  /// A path under which this process can open it.
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  int file_;
};

}  // namespace annulus::fuzz
