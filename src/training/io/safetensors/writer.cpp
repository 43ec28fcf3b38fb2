#include "training/io/safetensors/writer.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <limits>
#include <utility>

#include <annulus/base/error.hpp>

#include "base/system_error.hpp"
#include "training/io/atomic.hpp"
#include "training/io/crc32.hpp"
#include "training/io/json.hpp"
#include "training/io/safetensors/header.hpp"

namespace annulus::io {

namespace {

std::uint32_t joined(std::uint32_t first, std::uint32_t second, std::uint64_t bytes_of_second) {
  return static_cast<std::uint32_t>(::crc32_combine(first, second, static_cast<z_off_t>(bytes_of_second)));
}

/// Where the tensors lie.
safetensors::Header lay_out(std::vector<SafetensorsSpec> specs, std::map<std::string, std::string> metadata,
                            const std::string& path) {
  std::stable_sort(specs.begin(), specs.end(), [](const SafetensorsSpec& a, const SafetensorsSpec& b) {
    return size_of(a.type) > size_of(b.type);
  });
  safetensors::Header header{{}, std::move(metadata)};
  std::uint64_t next = 0;
  for (SafetensorsSpec& spec : specs) {
    const auto bytes = safetensors::bytes_of(spec.extents, size_of(spec.type));
    std::uint64_t end = 0;
    require(bytes && !__builtin_add_overflow(next, *bytes, &end) &&
                end <= std::numeric_limits<std::int64_t>::max() / 2,
            "cannot write '{}': tensor {} makes it larger than files can be: correct its shape", path,
            shown(spec.name));
    require(spec.name != safetensors::metadata_name,
            "cannot write '{}': the name {} is reserved: choose another one", path, spec.name);
    header.tensors.push_back({std::move(spec.name), std::string(safetensors::type_of(spec.type).name),
                              spec.type, std::move(spec.extents), next, end});
    next = end;
  }
  return header;
}

}  // namespace

bool SafetensorsWriter::WrittenRanges::add(std::uint64_t begin, std::uint64_t end, std::uint32_t crc) {
  if (begin == end) return true;
  auto behind = ranges_.lower_bound(begin);
  if (behind != ranges_.end() && behind->first < end) return false;
  if (behind != ranges_.begin()) {
    const auto before = std::prev(behind);
    if (before->second.end > begin) return false;
    if (before->second.end == begin) {
      crc = joined(before->second.crc, crc, end - begin);
      begin = before->first;
      ranges_.erase(before);
    }
  }
  if (behind != ranges_.end() && behind->first == end) {
    crc = joined(crc, behind->second.crc, behind->second.end - end);
    end = behind->second.end;
    ranges_.erase(behind);
  }
  ranges_[begin] = {end, crc};
  return true;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsSpec> specs,
                                     Options options)
    : path_(path.string()), checksum_(options.checksum) {
  safetensors::Header header = lay_out(std::move(specs), std::move(options.metadata), path_);
  const std::string text = safetensors::header_text(header, path_);
  data_ = text.size();
  for (SafetensorsTensor& tensor : header.tensors) {
    data_bytes_ = tensor.end;
    std::string name = tensor.name;
    const auto [there, added] = tensors_.try_emplace(std::move(name), std::move(tensor));
    require(added, "cannot write '{}': two tensors have the name {}: rename one", path_, shown(there->first));
  }
  constexpr int flags =
      O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;  // waits for no pipe
  file_ = Descriptor(::open(path.c_str(), flags, 0666));
  require_system(file_.get() >= 0, "write", path_);
  require_system(write_all(file_.get(), text), "write", path_);
  header_crc_ = checksum_ ? crc32_of(std::span<const char>(text)) : 0;
}

void SafetensorsWriter::write_elements(std::string_view name, DType type, std::uint64_t first,
                                       std::span<const std::byte> values) {
  const SafetensorsTensor& tensor = find(name);
  require(tensor.dtype == type, "cannot write {} into tensor {} of '{}': it is {}",
          safetensors::type_of(type).name, shown(name), path_, tensor.type);
  std::uint64_t skipped = 0;
  require(values.size() % size_of(type) == 0 && !__builtin_mul_overflow(first, size_of(type), &skipped) &&
              skipped <= tensor.bytes() && values.size() <= tensor.bytes() - skipped,
          "cannot write {} bytes into tensor {} of '{}' from element {} on: it has {} bytes", values.size(),
          shown(name), path_, first, tensor.bytes());
  const std::uint64_t begin = tensor.begin + skipped;
  const std::uint32_t crc = checksum_ ? io::crc32(values) : 0;
  {
    const std::lock_guard lock(mutex_);
    require(written_.add(begin, begin + values.size(), crc),
            "cannot write elements of tensor {} of '{}' a second time (from element {} on)", shown(name),
            path_, first);
  }
  write_at(data_ + begin, values);
}

std::optional<std::uint32_t> SafetensorsWriter::finish() {
  require(file_.get() >= 0, "cannot finish '{}': it is finished already", path_);
  require(!failed_, "cannot finish '{}': writing to it has failed", path_);
  const std::uint64_t missing = written_.first_missing();
  for (const auto& [name, tensor] : tensors_) {
    require(missing < tensor.begin || missing >= tensor.end,
            "cannot finish '{}': tensor {} lacks elements from byte {} of its {} on", path_, shown(name),
            missing - tensor.begin, tensor.bytes());
  }
  // File systems without fsync say EINVAL; there is nothing more to be done on those.
  require_system(::fsync(file_.get()) == 0 || errno == EINVAL, "bring to the disk", path_);
  require_system(::close(file_.release()) == 0, "write", path_);
  if (!checksum_) return std::nullopt;
  return static_cast<std::uint32_t>(
      ::crc32_combine(header_crc_, written_.crc(), static_cast<z_off_t>(data_bytes_)));
}

const SafetensorsTensor& SafetensorsWriter::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  require(found != tensors_.end(), "cannot write tensor {}: '{}' was started without it", shown(name), path_);
  return found->second;
}

void SafetensorsWriter::write_at(std::uint64_t at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) failed_ = true;
    require_system(count >= 0, "write", path_);
    at += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

std::optional<std::uint32_t> write_safetensors(const std::filesystem::path& path,
                                               std::vector<SafetensorsSpec> specs,
                                               SafetensorsWriter::Options options,
                                               const std::function<void(SafetensorsWriter&)>& fill) {
  std::optional<std::uint32_t> checksum;
  write_atomically(path, [&](const std::filesystem::path& temporary) {
    SafetensorsWriter file(temporary, std::move(specs), std::move(options));
    fill(file);
    checksum = file.finish();
  });
  return checksum;
}

}  // namespace annulus::io
