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
  const auto crc_of = [](std::span<const std::byte> part) {
    return static_cast<std::uint32_t>(::crc32_z(0, reinterpret_cast<const Bytef*>(part.data()), part.size()));
  };
  if (data.empty()) return previous;  // zlib takes a null pointer for a request of the initial value
  const std::uint64_t threads = std::clamp<std::uint64_t>(
      std::min<std::uint64_t>(std::thread::hardware_concurrency(), data.size() / least_of_thread), 1,
      most_threads);
  const std::size_t size = ceil_divide(data.size(), threads);  // of a part
  const auto part_at = [&](std::size_t begin) {
    return data.subspan(begin, std::min(size, data.size() - begin));
  };
  std::vector<std::future<std::uint32_t>> others;  // of the second part and so on
  for (std::size_t begin = size; begin < data.size();
       begin += size)  // where no thread can be had: when asked
    others.push_back(std::async(crc_of, part_at(begin)));
  for (std::size_t begin = 0; begin < data.size(); begin += size) {
    const std::uint32_t next = begin == 0 ? crc_of(part_at(0)) : others[begin / size - 1].get();
    previous = static_cast<std::uint32_t>(
        ::crc32_combine(previous, next, static_cast<z_off_t>(part_at(begin).size())));
  }
  return previous;
}

}  // namespace annulus::io
