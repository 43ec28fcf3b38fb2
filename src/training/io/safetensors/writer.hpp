#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/system/descriptor.hpp"
#include "training/io/safetensors/safetensors.hpp"

/// Writing files in safetensors layout (safetensors.hpp), any part of any tensor at any time.
namespace annulus::io {

/// A tensor to be written.
struct SafetensorsSpec {
  std::string name;
  DType type = DType::f32;
  Extents extents;  ///< outermost dimension first; empty: one element
};

/// A file that is being written. Its header, which says where everything lies, goes out first; then elements
/// may come in any order and from several threads at once, each one time. Tensors lie in the order of
/// `specs`, those with wider elements before those with narrower ones, so that every tensor is aligned. Equal
/// specs and elements give equal files, byte for byte.
class SafetensorsWriter {
 public:
  /// Starts the file `path`, in place of one of that name (write_safetensors replaces it in one step
  /// instead). `metadata`: "__metadata__". Throws Error for names that are doubled, reserved or no UTF-8 and
  /// for what cannot be written.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsSpec> specs,
                    std::map<std::string, std::string> metadata = {});
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// Writes values.size() elements of the tensor `name`, in row-major order, from element `first` on. Throws
  /// Error when there is no such tensor or element, when it has another type than T, and when an element was
  /// written before.
  template <class T>
  void write(std::string_view name, std::uint64_t first, std::span<const T> values) {
    write_elements(name, dtype_of<T>, first, std::as_bytes(values));
  }

  /// Writes elements of `type` as they lie in memory.
  void write_elements(std::string_view name, DType type, std::uint64_t first,
                      std::span<const std::byte> values);

  /// Bytes of the whole file.
  std::uint64_t size() const { return data_ + data_bytes_; }

  /// Brings the file to the disk and closes it. Throws Error that names the first tensor of which elements
  /// are missing.
  void finish();

 private:
  /// Notes that bytes [begin, end) are written. False when one of them was noted before.
  bool note_written(std::uint64_t begin, std::uint64_t end);
  const SafetensorsTensor& find(std::string_view name) const;

  std::string path_;
  Descriptor file_{-1};
  std::map<std::string, SafetensorsTensor, std::less<>> tensors_;
  std::uint64_t data_ = 0, data_bytes_ = 0;  // where the first tensor begins, bytes of all
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;                                // of written_
  std::map<std::uint64_t, std::uint64_t> written_;  // ranges of bytes, neighbours joined: ends by beginnings
};

/// Replaces the file `path` in one step (write_atomically) by one that `fill` writes.
void write_safetensors(const std::filesystem::path& path, std::vector<SafetensorsSpec> specs,
                       std::map<std::string, std::string> metadata,
                       const std::function<void(SafetensorsWriter&)>& fill);

}  // namespace annulus::io
