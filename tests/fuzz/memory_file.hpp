#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <span>
#include <string>

#include "fuzz.hpp"

namespace annulus::fuzz {

/// A file of these bytes that lives in memory and goes with this object.
class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::uint8_t> bytes) : file_(::memfd_create("input", MFD_CLOEXEC)) {
    expect(file_ >= 0, "a file in memory");
    append(bytes);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { ::close(file_); }

  void append(std::span<const std::uint8_t> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::write(file_, bytes.data(), bytes.size());
      expect(count > 0, "room in memory");
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }

  /// A path under which this process can open it.
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  int file_;
};

}  // namespace annulus::fuzz
