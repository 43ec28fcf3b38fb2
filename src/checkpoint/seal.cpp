#include "checkpoint/seal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/checkpoint/state.hpp>
#include <annulus/io/crc32.hpp>

namespace annulus::checkpoint {

namespace {

std::string seal_text(std::uint32_t crc) {
  return fmt::format("\nannulus-checkpoint crc32 {:08x}\n", crc);
}

// CRC-32 of the first `size` bytes, in parts that threads read side by side.
std::uint32_t crc_of_file(const std::filesystem::path& path, std::uintmax_t size) {
  return io::crc32_in_parts(size, [&](std::uint64_t begin, std::uint64_t end) {
    std::ifstream file(path, std::ios::binary);
    file.seekg(static_cast<std::streamoff>(begin));
    std::vector<char> chunk(std::size_t{1} << 20);
    std::uint32_t crc = 0;
    while (begin < end) {
      const auto count = std::min<std::uint64_t>(end - begin, chunk.size());
      file.read(chunk.data(), static_cast<std::streamsize>(count));
      require(file.good(), "checkpoint {} cannot be read ({}): {}", path.string(), std::strerror(errno),
              bad_checkpoint_advice);
      crc = io::crc32_of(std::span<const char>(chunk.data(), count), crc);
      begin += count;
    }
    return crc;
  });
}

std::uintmax_t size_of(const std::filesystem::path& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  require(!error, "checkpoint {} cannot be read ({}): check the path", path.string(), error.message());
  return size;
}

}  // namespace

void seal_checkpoint(const std::filesystem::path& path) {
  const std::string seal = seal_text(crc_of_file(path, size_of(path)));
  std::ofstream file(path, std::ios::binary | std::ios::app);
  file << seal << std::flush;
  require(file.good(), "checkpoint {} cannot be written ({})", path.string(), std::strerror(errno));
}

void require_sealed(const std::filesystem::path& path) {
  const std::uintmax_t size = size_of(path), length = seal_text(0).size();
  std::ifstream file(path, std::ios::binary);
  std::string signature(8, '\0'), end(length, '\0');
  file.read(signature.data(), 8);
  require(file.good() && signature == "\x89HDF\r\n\x1a\n",
          "{} is no checkpoint of Annulus (not even HDF5): give the right file, or {}", path.string(),
          bad_checkpoint_advice);
  if (size >= 8 + length) {
    file.seekg(static_cast<std::streamoff>(size - length));
    file.read(end.data(), static_cast<std::streamsize>(length));
  }
  require(end.starts_with(seal_text(0).substr(0, 26)),
          "{} is truncated, or no checkpoint of Annulus (its last line, the checksum, is missing): {}",
          path.string(), bad_checkpoint_advice);
  require(end == seal_text(crc_of_file(path, size - length)),
          "{} is damaged (its CRC-32 is not the one in its last line): {}", path.string(),
          bad_checkpoint_advice);
}

}  // namespace annulus::checkpoint
