#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.hpp"
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
  struct Options {
    std::map<std::string, std::string> metadata{};  ///< "__metadata__"
    bool checksum = false;                          ///< finish() gives the CRC-32 of the file
  };

  /// Starts the file `path`, in place of one of that name (write_safetensors replaces it in one step
  /// instead). Throws Error for names that are doubled, reserved or no UTF-8 and for what cannot be written.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsSpec> specs, Options options);
  SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsSpec> specs)
      : SafetensorsWriter(path, std::move(specs), Options{}) {}
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
  /// are missing. Gives the CRC-32 (io::crc32) of the whole file when Options::checksum asks for it.
  std::optional<std::uint32_t> finish();

 private:
  /// Ranges of bytes that have been written, neighbours joined, with the CRC-32 of each.
  class WrittenRanges {
   public:
    /// False when a byte of [begin, end) has been added before.
    bool add(std::uint64_t begin, std::uint64_t end, std::uint32_t crc);

    /// The first byte from 0 on that has not been added.
    std::uint64_t first_missing() const {
      return ranges_.empty() || ranges_.begin()->first > 0 ? 0 : ranges_.begin()->second.end;
    }
    /// CRC-32 of the bytes before first_missing().
    std::uint32_t crc() const { return first_missing() == 0 ? 0 : ranges_.begin()->second.crc; }

   private:
    struct Range {
      std::uint64_t end;
      std::uint32_t crc;
    };

    std::map<std::uint64_t, Range> ranges_;  // by where they begin
  };
  const SafetensorsTensor& find(std::string_view name) const;
  void write_at(std::uint64_t at, std::span<const std::byte> bytes);

  std::string path_;
  Descriptor file_{-1};
  std::map<std::string, SafetensorsTensor, std::less<>> tensors_;
  std::uint64_t data_ = 0, data_bytes_ = 0;  // where the first tensor begins, bytes of all
  bool checksum_;
  std::uint32_t header_crc_ = 0;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;  // of written_
  WrittenRanges written_;
};

/// Replaces the file `path` in one step (write_atomically) by one that `fill` writes, and gives what
/// SafetensorsWriter::finish gives.
std::optional<std::uint32_t> write_safetensors(const std::filesystem::path& path,
                                               std::vector<SafetensorsSpec> specs,
                                               SafetensorsWriter::Options options,
                                               const std::function<void(SafetensorsWriter&)>& fill);

}  // namespace annulus::io
