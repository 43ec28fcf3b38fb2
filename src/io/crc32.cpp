#include <annulus/io/crc32.hpp>

#include <zlib.h>

#include <algorithm>
#include <future>
#include <thread>
#include <vector>

namespace annulus::io {

namespace {

// Bytes for which a thread of its own is worth while, and threads that together outrun most storage.
constexpr std::size_t least_of_thread = std::size_t{4} << 20;
constexpr std::size_t most_threads = 8;

std::uint32_t crc32_alone(std::span<const std::byte> data, std::uint32_t previous) {
  return static_cast<std::uint32_t>(
      ::crc32_z(previous, reinterpret_cast<const Bytef*>(data.data()), data.size()));
}

}  // namespace

std::uint32_t crc32(std::span<const std::byte> data, std::uint32_t previous) {
  if (data.empty()) return previous;  // zlib takes a null pointer for a request of the initial value
  const std::size_t threads = std::clamp<std::size_t>(
      std::min<std::size_t>(std::thread::hardware_concurrency(), data.size() / least_of_thread), 1,
      most_threads);
  const std::size_t piece = (data.size() + threads - 1) / threads;
  std::vector<std::future<std::uint32_t>> others;  // of the second piece and so on
  for (std::size_t begin = piece; begin < data.size(); begin += piece)
    others.push_back(std::async([=] {  // where no thread can be had, at the time of get
      return crc32_alone(data.subspan(begin, std::min(piece, data.size() - begin)), 0);
    }));
  std::uint32_t crc = crc32_alone(data.first(std::min(piece, data.size())), previous);
  for (std::size_t i = 0; i < others.size(); ++i) {
    const std::size_t size = std::min(piece, data.size() - (i + 1) * piece);
    crc = static_cast<std::uint32_t>(::crc32_combine(crc, others[i].get(), static_cast<z_off_t>(size)));
  }
  return crc;
}

}  // namespace annulus::io
