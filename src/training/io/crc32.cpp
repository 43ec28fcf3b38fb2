#include "training/io/crc32.hpp"

#include <zlib.h>

#include <algorithm>
#include <future>
#include <thread>
#include <vector>

#include <annulus/base/division.hpp>

namespace annulus::io {

namespace {

// Bytes for which a thread of its own is worth while, and threads that together outrun most storage.
constexpr std::uint64_t least_of_thread = std::uint64_t{4} << 20;
constexpr std::uint64_t most_threads = 8;

}  // namespace

std::uint32_t crc32(std::span<const std::byte> data, std::uint32_t previous) {
  if (data.empty()) return previous;  // zlib takes a null pointer for a request of the initial value
  return crc32_in_parts(
      data.size(),
      [&](std::uint64_t begin, std::uint64_t end) {
        const auto part = data.subspan(begin, end - begin);
        return static_cast<std::uint32_t>(
            ::crc32_z(0, reinterpret_cast<const Bytef*>(part.data()), part.size()));
      },
      previous);
}

std::uint32_t crc32_in_parts(std::uint64_t size,
                             const std::function<std::uint32_t(std::uint64_t, std::uint64_t)>& crc_of,
                             std::uint32_t previous) {
  const std::uint64_t threads = std::clamp<std::uint64_t>(
      std::min<std::uint64_t>(std::thread::hardware_concurrency(), size / least_of_thread), 1, most_threads);
  const std::uint64_t part = ceil_divide(size, threads);
  const auto end_of = [=](std::uint64_t begin) { return std::min(size, begin + part); };
  std::vector<std::future<std::uint32_t>> others;                // of the second part and so on
  for (std::uint64_t begin = part; begin < size; begin += part)  // where no thread can be had: when asked
    others.push_back(std::async([&crc_of, begin, end = end_of(begin)] { return crc_of(begin, end); }));
  std::uint32_t crc = previous;
  for (std::uint64_t begin = 0; begin < size; begin += part) {
    const std::uint32_t next = begin == 0 ? crc_of(0, end_of(0)) : others[begin / part - 1].get();
    crc = static_cast<std::uint32_t>(::crc32_combine(crc, next, static_cast<z_off_t>(end_of(begin) - begin)));
  }
  return crc;
}

}  // namespace annulus::io
