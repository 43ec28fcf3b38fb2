#include "checkpoint/seal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/base/file.hpp>
#include <annulus/checkpoint/state.hpp>
#include <annulus/io/crc32.hpp>

namespace annulus::checkpoint {

namespace {

std::string seal_text(std::uint32_t crc) {
  return fmt::format("\nannulus-checkpoint crc32 {:08x}\n", crc);
}

// CRC-32 of the first `size` bytes, in parts that threads read side by side.
std::uint32_t crc_of_file(const InputFile& file, std::uint64_t size) {
  return io::crc32_in_parts(size, [&](std::uint64_t begin, std::uint64_t end) {
    std::vector<std::byte> chunk(std::size_t{1} << 20);
    std::uint32_t crc = 0;
    while (begin < end) {
      const std::span<std::byte> part(chunk.data(), std::min<std::uint64_t>(end - begin, chunk.size()));
      require(file.read_at(begin, part) == part.size(), "checkpoint {} became shorter while it was read: {}",
              file.path(), bad_checkpoint_advice);
      crc = io::crc32(part, crc);
      begin += part.size();
    }
    return crc;
  });
}

}  // namespace

void seal_checkpoint(const std::filesystem::path& path) {
  const InputFile file(path, kinds::hdf5);
  const std::string seal = seal_text(crc_of_file(file, file.size()));
  std::ofstream stream(path, std::ios::binary | std::ios::app);
  stream << seal << std::flush;
  require(stream.good(), "checkpoint {} cannot be written ({})", path.string(), std::strerror(errno));
}

void require_sealed(const std::filesystem::path& path) {
  const InputFile file(path, kinds::hdf5);
  const std::uint64_t length = seal_text(0).size();
  std::string signature(8, '\0'), end(length, '\0');
  file.read_at(0, std::as_writable_bytes(std::span(signature)));
  require(signature == "\x89HDF\r\n\x1a\n",
          "{} is no checkpoint of Annulus (not even HDF5): give the right file, or {}", path.string(),
          bad_checkpoint_advice);
  if (file.size() >= 8 + length) file.read_at(file.size() - length, std::as_writable_bytes(std::span(end)));
  require(end.starts_with(seal_text(0).substr(0, 26)),
          "{} is truncated, or no checkpoint of Annulus (its last line, the checksum, is missing): {}",
          path.string(), bad_checkpoint_advice);
  require(end == seal_text(crc_of_file(file, file.size() - length)),
          "{} is damaged (its CRC-32 is not the one in its last line): {}", path.string(),
          bad_checkpoint_advice);
}

}  // namespace annulus::checkpoint
