#include "training/io/safetensors/writer.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <limits>
#include <utility>

#include <annulus/base/error.hpp>

#include "base/system/system_error.hpp"
#include "training/io/atomic.hpp"
#include "training/io/json.hpp"
#include "training/io/safetensors/header.hpp"

namespace annulus::io {

namespace {

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

bool SafetensorsWriter::note_written(std::uint64_t begin, std::uint64_t end) {
  if (begin == end) return true;
  const std::lock_guard lock(mutex_);
  const auto behind = written_.lower_bound(begin);
  if (behind != written_.end() && behind->first < end) return false;
  if (behind != written_.begin()) {
    const auto before = std::prev(behind);
    if (before->second > begin) return false;
    if (before->second == begin) {
      begin = before->first;
      written_.erase(before);
    }
  }
  if (behind != written_.end() && behind->first == end) {
    end = behind->second;
    written_.erase(behind);
  }
  written_[begin] = end;
  return true;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsSpec> specs,
                                     std::map<std::string, std::string> metadata)
    : path_(path.string()) {
  safetensors::Header header = lay_out(std::move(specs), std::move(metadata), path_);
  const std::string text = safetensors::header_text(header, path_);
  data_ = text.size();
  for (SafetensorsTensor& tensor : header.tensors) {
    data_bytes_ = tensor.end;
    std::string name = tensor.name;
    const auto [there, added] = tensors_.try_emplace(std::move(name), std::move(tensor));
    require(added, "cannot write '{}': two tensors have the name {}: rename one", path_, shown(there->first));
  }
  file_ = new_file(path);
  require_system(write_all(file_.get(), text), "write", path_);
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
  require(note_written(begin, begin + values.size()),
          "cannot write elements of tensor {} of '{}' a second time (from element {} on)", shown(name), path_,
          first);
  const bool written = write_at(file_.get(), data_ + begin, values);
  if (!written) failed_ = true;
  require_system(written, "write", path_);
}

void SafetensorsWriter::finish() {
  require(file_.get() >= 0, "cannot finish '{}': it is finished already", path_);
  require(!failed_, "cannot finish '{}': writing to it has failed", path_);
  const std::uint64_t missing =
      written_.empty() || written_.begin()->first > 0 ? 0 : written_.begin()->second;
  for (const auto& [name, tensor] : tensors_) {
    require(missing < tensor.begin || missing >= tensor.end,
            "cannot finish '{}': tensor {} lacks elements from byte {} of its {} on", path_, shown(name),
            missing - tensor.begin, tensor.bytes());
  }
  // File systems without fsync say EINVAL; there is nothing more to be done on those.
  require_system(::fsync(file_.get()) == 0 || errno == EINVAL, "bring to the disk", path_);
  require_system(::close(file_.release()) == 0, "write", path_);
}

const SafetensorsTensor& SafetensorsWriter::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  require(found != tensors_.end(), "cannot write tensor {}: '{}' was started without it", shown(name), path_);
  return found->second;
}

void write_safetensors(const std::filesystem::path& path, std::vector<SafetensorsSpec> specs,
                       std::map<std::string, std::string> metadata,
                       const std::function<void(SafetensorsWriter&)>& fill) {
  write_atomically(path, [&](const std::filesystem::path& temporary) {
    SafetensorsWriter file(temporary, std::move(specs), std::move(metadata));
    fill(file);
    file.finish();
  });
}

}  // namespace annulus::io
