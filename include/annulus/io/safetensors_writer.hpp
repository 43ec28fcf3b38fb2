#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/base/dtype.hpp>
#include <annulus/io/hdf5.hpp>

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
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;
  ~SafetensorsWriter();

  /// Writes values.size() elements of the tensor `name`, in row-major order, from element `first` on. Throws
  /// Error when there is no such tensor or element, when it has another type than T, and when an element was
  /// written before.
  template <class T>
  void write(std::string_view name, std::uint64_t first, std::span<const T> values) {
    write_elements(name, dtype_of<T>, first, std::as_bytes(values));
  }

  /// The same for elements of `type` as they lie in memory.
  void write_elements(std::string_view name, DType type, std::uint64_t first,
                      std::span<const std::byte> values);

  /// Bytes of the whole file.
  std::uint64_t size() const;

  /// Brings the file to the disk and closes it. Throws Error that names the first tensor of which elements
  /// are missing. Gives the CRC-32 (io::crc32) of the whole file when Options::checksum asks for it.
  std::optional<std::uint32_t> finish();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Replaces the file `path` in one step (write_atomically) by one that `fill` writes, and gives what
/// SafetensorsWriter::finish gives.
std::optional<std::uint32_t> write_safetensors(const std::filesystem::path& path,
                                               std::vector<SafetensorsSpec> specs,
                                               SafetensorsWriter::Options options,
                                               const std::function<void(SafetensorsWriter&)>& fill);

}  // namespace annulus::io
