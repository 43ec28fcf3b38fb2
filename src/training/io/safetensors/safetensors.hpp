#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/base/dtype.hpp>

#include "base/file.hpp"
#include "training/io/hdf5_files/hdf5.hpp"

/// Reading files in safetensors layout: eight bytes with the length of a JSON header, the header, and the
/// elements of all tensors without gaps, little-endian and row-major. writer.hpp writes them.
///
/// Nothing that a file says is believed before it is checked, and nothing is mapped: a file that shrinks
/// while it is read is an Error, not a signal. Every Error is one line that names the file, the tensor and
/// what is wrong.
namespace annulus::io {

/// Headers beyond this many bytes are refused, here and by other readers of the format.
inline constexpr std::uint64_t most_safetensors_header = 100'000'000;

/// One tensor of a file.
struct SafetensorsTensor {
  std::string name;
  std::string type;            ///< as the format spells it: "BF16"
  std::optional<DType> dtype;  ///< none where Annulus computes with no such type (BOOL, I8, F8_E4M3, …)
  Extents extents;             ///< outermost dimension first; empty: one element
  std::uint64_t begin = 0, end = 0;  ///< bytes, from the first byte behind the header

  std::uint64_t bytes() const { return end - begin; }
  bool operator==(const SafetensorsTensor&) const = default;
};

/// A file opened for reading. Several threads may read at once.
class SafetensorsFile {
 public:
  /// Reads and checks the header. Throws Error when the file is missing, truncated or no safetensors file,
  /// when the header is no JSON object of tensors or says anything twice, when type, shape and length of a
  /// tensor disagree, and when tensors overlap, leave gaps or lead out of the file.
  explicit SafetensorsFile(const std::filesystem::path& path, Links links = Links::follow);

  /// The path as it was given.
  const std::string& path() const { return file_.path(); }

  /// The tensors in the order of their data.
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }

  /// "__metadata__": texts by name.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// The tensor of that name; null where there is none.
  const SafetensorsTensor* find(std::string_view name) const;

  /// The tensor of that name. Throws Error where there is none.
  const SafetensorsTensor& tensor(std::string_view name) const;

  /// Reads out.size() elements of `tensor`, in row-major order, from element `first` on. Throws Error when
  /// the tensor has another type than T, or fewer elements.
  template <class T>
  void read(const SafetensorsTensor& tensor, std::uint64_t first, std::span<T> out) const {
    require_type(tensor, dtype_of<T>);
    read_bytes(tensor, first, sizeof(T), std::as_writable_bytes(out));
  }
  /// Reads all elements, for which `out` has exactly the room.
  template <class T>
  void read(const SafetensorsTensor& tensor, std::span<T> out) const {
    require_room(tensor, out.size_bytes());
    read(tensor, 0, out);
  }

  /// Reads out.size() bytes of `tensor` from byte `first · unit` on, whatever its type.
  void read_bytes(const SafetensorsTensor& tensor, std::uint64_t first, std::uint64_t unit,
                  std::span<std::byte> out) const;

 private:
  void require_type(const SafetensorsTensor& tensor, DType type) const;
  void require_room(const SafetensorsTensor& tensor, std::uint64_t bytes) const;
  void read_at(std::uint64_t at, std::span<std::byte> out) const;

  InputFile file_;
  std::uint64_t data_ = 0;  // where the first tensor begins
  std::vector<SafetensorsTensor> tensors_;
  std::vector<std::uint32_t> by_name_;  // indices of tensors_
  std::map<std::string, std::string> metadata_;
};

}  // namespace annulus::io
