#include <annulus/io/safetensors.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <numeric>
#include <utility>

#include <annulus/base/error.hpp>
#include <annulus/io/crc32.hpp>

#include "descriptor.hpp"
#include "safetensors_header.hpp"
#include "system_error.hpp"

namespace annulus::io {

namespace {

std::uint64_t size_of_regular(const detail::Descriptor& file, const std::string& path) {
  struct stat status {};
  detail::require_system(::fstat(file.get(), &status) == 0, "open", path);
  if (S_ISDIR(status.st_mode)) errno = EISDIR;
  detail::require_system(!S_ISDIR(status.st_mode), "read", path);
  require(S_ISREG(status.st_mode), "'{}' is no regular file: give the path of one", path);
  return static_cast<std::uint64_t>(status.st_size);
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path.string()),
      // Opening never waits for a pipe.
      file_(std::make_unique<detail::Descriptor>(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK))) {
  detail::require_system(file_->get() >= 0, "open", path_);
  size_ = size_of_regular(*file_, path_);
  std::array<std::byte, safetensors::length_bytes> start;
  require(size_ >= start.size(), "'{}' has {} bytes and is no safetensors file: copy or write it again",
          path_, size_);
  read_at(0, start);
  std::uint64_t length = 0;
  for (unsigned i = 0; i < start.size(); ++i) length |= std::to_integer<std::uint64_t>(start[i]) << (8 * i);
  require(length <= size_ - start.size(),
          "'{}': the header would have {} bytes, the file has {}: it is truncated or no safetensors file; "
          "copy or "
          "write it again",
          path_, length, size_);
  require(length <= most_safetensors_header,
          "'{}': the header has {} bytes, at most {} are read: write fewer tensors into one file", path_,
          length, most_safetensors_header);
  std::string text(length, '\0');
  read_at(start.size(), std::as_writable_bytes(std::span(text)));
  data_ = start.size() + length;
  safetensors::Header header = safetensors::parse_header(text, size_ - data_, path_);
  tensors_ = std::move(header.tensors);
  metadata_ = std::move(header.metadata);
  by_name_.resize(tensors_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(),
            [this](std::uint32_t a, std::uint32_t b) { return tensors_[a].name < tensors_[b].name; });
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

const SafetensorsTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [this](std::uint32_t index, std::string_view wanted) { return tensors_[index].name < wanted; });
  return found == by_name_.end() || tensors_[*found].name != name ? nullptr : &tensors_[*found];
}

const SafetensorsTensor& SafetensorsFile::tensor(std::string_view name) const {
  const SafetensorsTensor* found = find(name);
  require(found != nullptr, "'{}': there is no tensor {}: give the file that holds it", path_,
          safetensors::shown(name));
  return *found;
}

void SafetensorsFile::require_type(const SafetensorsTensor& tensor, DType type) const {
  require(tensor.dtype == type, "'{}': tensor {} is {}, where {} is expected: convert it", path_,
          safetensors::shown(tensor.name), tensor.type, safetensors::type_of(type).name);
}

void SafetensorsFile::require_room(const SafetensorsTensor& tensor, std::uint64_t bytes) const {
  require(tensor.bytes() == bytes, "'{}': tensor {} has {} bytes, where {} are expected: give the right file",
          path_, safetensors::shown(tensor.name), tensor.bytes(), bytes);
}

void SafetensorsFile::read_bytes(const SafetensorsTensor& tensor, std::uint64_t first, std::uint64_t unit,
                                 std::span<std::byte> out) const {
  std::uint64_t skipped = 0;
  require(!__builtin_mul_overflow(first, unit, &skipped) && skipped <= tensor.bytes() &&
              out.size() <= tensor.bytes() - skipped,
          "'{}': tensor {} has {} bytes; {} from element {} on are none of them: ask for what is there",
          path_, safetensors::shown(tensor.name), tensor.bytes(), out.size(), first);
  read_at(data_ + tensor.begin + skipped, out);
}

void SafetensorsFile::read_at(std::uint64_t at, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t count = ::pread(file_->get(), out.data(), out.size(), static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    detail::require_system(count >= 0, "read", path_);
    require(count > 0, "'{}' became shorter while it was read: copy or write it again", path_);
    at += static_cast<std::uint64_t>(count);
    out = out.subspan(static_cast<std::size_t>(count));
  }
}

std::uint32_t SafetensorsFile::crc32() const {
  return crc32_in_parts(size_, [&](std::uint64_t begin, std::uint64_t end) {
    std::vector<std::byte> piece(std::size_t{1} << 20);
    std::uint32_t crc = 0;
    while (begin < end) {
      const std::span<std::byte> part(piece.data(), std::min<std::uint64_t>(piece.size(), end - begin));
      read_at(begin, part);
      crc = io::crc32(part, crc);
      begin += part.size();
    }
    return crc;
  });
}

}  // namespace annulus::io
