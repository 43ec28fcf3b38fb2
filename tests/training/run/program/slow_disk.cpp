// A slow disk for programs that are started with this library in LD_PRELOAD: reading and writing files whose
// path holds SLOW_DISK_PATH takes as long as SLOW_DISK_RATE, bytes a second of each process, says.
#include <dlfcn.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;

bool is_slow(int file) {
  static const char* const part = std::getenv("SLOW_DISK_PATH");
  if (part == nullptr) return false;
  std::array<char, 4096> path;
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  const ssize_t size = ::readlink(link.c_str(), path.data(), path.size());
  return size > 0 &&
         std::string_view(path.data(), static_cast<std::size_t>(size)).find(part) != std::string_view::npos;
}

/// Returns when the disk has got through with `bytes`, behind those of other threads.
void wait_for(ssize_t bytes) {
  static const char* const rate = std::getenv("SLOW_DISK_RATE");
  if (rate == nullptr || bytes <= 0) return;
  static std::mutex mutex;
  static Clock::time_point free;
  const std::chrono::duration<double> seconds(static_cast<double>(bytes) / std::atof(rate));
  Clock::time_point end;
  {
    const std::lock_guard lock(mutex);
    end = free = std::max(free, Clock::now()) + std::chrono::duration_cast<Clock::duration>(seconds);
  }
  std::this_thread::sleep_until(end);
}

template <class Call, class... Arguments>
ssize_t slowly(const char* name, int file, Arguments... arguments) {
  const auto real = reinterpret_cast<Call*>(::dlsym(RTLD_NEXT, name));
  const ssize_t bytes = real(file, arguments...);
  const int error = errno;
  if (bytes > 0 && is_slow(file)) wait_for(bytes);
  errno = error;
  return bytes;
}

}  // namespace

extern "C" {

ssize_t write(int file, const void* data, size_t size) {
  return slowly<ssize_t(int, const void*, size_t)>("write", file, data, size);
}
ssize_t writev(int file, const iovec* parts, int count) {
  return slowly<ssize_t(int, const iovec*, int)>("writev", file, parts, count);
}
ssize_t pwrite(int file, const void* data, size_t size, off_t at) {
  return slowly<ssize_t(int, const void*, size_t, off_t)>("pwrite", file, data, size, at);
}
ssize_t pwrite64(int file, const void* data, size_t size, off64_t at) {
  return slowly<ssize_t(int, const void*, size_t, off64_t)>("pwrite64", file, data, size, at);
}
ssize_t read(int file, void* data, size_t size) {
  return slowly<ssize_t(int, void*, size_t)>("read", file, data, size);
}
ssize_t pread(int file, void* data, size_t size, off_t at) {
  return slowly<ssize_t(int, void*, size_t, off_t)>("pread", file, data, size, at);
}
ssize_t pread64(int file, void* data, size_t size, off64_t at) {
  return slowly<ssize_t(int, void*, size_t, off64_t)>("pread64", file, data, size, at);
}

}  // extern "C"
