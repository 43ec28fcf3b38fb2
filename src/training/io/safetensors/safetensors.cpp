#include "training/io/safetensors/safetensors.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include <annulus/base/error.hpp>

#include "training/io/json.hpp"
#include "training/io/safetensors/header.hpp"

namespace annulus::io {

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, Links links)
    : file_(path, kinds::safetensors, links) {
  const std::uint64_t size = file_.size();
  std::uint64_t length = 0;
  const auto start = std::as_writable_bytes(std::span(&length, 1));
  require(size >= start.size(), "'{}' has {} bytes and is no safetensors file: copy or write it again",
          file_.path(), size);
  read_at(0, start);
  require(length <= size - start.size(),
          "'{}': the header would have {} bytes, the file has {}: it is truncated or no safetensors file; "
          "copy or write it again",
          file_.path(), length, size);
  require(length <= most_safetensors_header,
          "'{}': the header has {} bytes, at most {} are read: write fewer tensors into one file",
          file_.path(), length, most_safetensors_header);
  std::string text(length, '\0');
  read_at(start.size(), std::as_writable_bytes(std::span(text)));
  data_ = start.size() + length;
  safetensors::Header header = safetensors::parse_header(text, size - data_, file_.path());
  tensors_ = std::move(header.tensors);
  metadata_ = std::move(header.metadata);
  by_name_.resize(tensors_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(),
            [this](std::uint32_t a, std::uint32_t b) { return tensors_[a].name < tensors_[b].name; });
}

const SafetensorsTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [this](std::uint32_t index, std::string_view wanted) { return tensors_[index].name < wanted; });
  return found == by_name_.end() || tensors_[*found].name != name ? nullptr : &tensors_[*found];
}

const SafetensorsTensor& SafetensorsFile::tensor(std::string_view name) const {
  const SafetensorsTensor* found = find(name);
  require(found != nullptr, "'{}': there is no tensor {}: give the file that holds it", path(), shown(name));
  return *found;
}

void SafetensorsFile::require_type(const SafetensorsTensor& tensor, DType type) const {
  require(tensor.dtype == type, "'{}': tensor {} is {}, where {} is expected: convert it", path(),
          shown(tensor.name), tensor.type, safetensors::type_of(type).name);
}

void SafetensorsFile::require_room(const SafetensorsTensor& tensor, std::uint64_t bytes) const {
  require(tensor.bytes() == bytes, "'{}': tensor {} has {} bytes, where {} are expected: give the right file",
          path(), shown(tensor.name), tensor.bytes(), bytes);
}

void SafetensorsFile::read_bytes(const SafetensorsTensor& tensor, std::uint64_t first, std::uint64_t unit,
                                 std::span<std::byte> out) const {
  std::uint64_t skipped = 0;
  require(!__builtin_mul_overflow(first, unit, &skipped) && skipped <= tensor.bytes() &&
              out.size() <= tensor.bytes() - skipped,
          "'{}': tensor {} has {} bytes; {} from element {} on are none of them: ask for what is there",
          path(), shown(tensor.name), tensor.bytes(), out.size(), first);
  read_at(data_ + tensor.begin + skipped, out);
}

void SafetensorsFile::read_at(std::uint64_t at, std::span<std::byte> out) const {
  require(file_.read_at(at, out) == out.size(),
          "'{}' became shorter while it was read: copy or write it again", path());
}

}  // namespace annulus::io
