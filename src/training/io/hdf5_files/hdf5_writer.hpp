#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "training/io/hdf5_files/hdf5.hpp"

/// Writing HDF5 files: groups, datasets in one piece, attributes. Elements go to their places in the file
/// when they are given, metadata when it is closed.
///
/// Metadata has checksums (superblock 2, object headers 2: HDF5 1.8 and later, and h5py, read them), and each
/// object with strings the attribute strings_crc32: CRC-32 over its strings in order of their names, of each
/// the name, a NUL, the value, a NUL. Nothing depends on time: equal contents give equal bytes.
///
/// Every failure is an Error that names the file, the dataset where there is one, and what to do. The
/// datasets of a file may be used by several threads, but one object not by two at once.
namespace annulus::io {

namespace hdf5 {
struct WrittenFile;
struct WrittenObject;
}  // namespace hdf5

/// What the root group and datasets that are being written share: a place in a file, and attributes.
class ObjectWriter {
 public:
  /// Path of the file, as it was made.
  const std::string& file() const;

  /// Path inside the file, "/" for the root group.
  const std::string& name() const;

  /// Sets an attribute, replacing one of that name. Strings are stored as variable-length UTF-8, integers as
  /// 64-bit signed, the rest as 64-bit floats: what h5py reads as str, int64 and float64.
  void set_attribute(const std::string& name, std::string_view value);
  void set_attribute(const std::string& name, double value);
  void set_attribute(const std::string& name, std::int64_t value);
  template <std::integral I>
  void set_attribute(const std::string& name, I value) {
    set_attribute(name, static_cast<std::int64_t>(value));
  }

 protected:
  ObjectWriter(std::shared_ptr<hdf5::WrittenFile> file, hdf5::WrittenObject& object)
      : file_(std::move(file)), object_(&object) {}
  std::shared_ptr<hdf5::WrittenFile> file_;
  hdf5::WrittenObject* object_;  // which the file owns
};

/// An n-dimensional array that is being written.
class DatasetWriter : public ObjectWriter {
 public:
  DType type() const;
  const Extents& extents() const;

  /// Writes all elements, in row-major order.
  template <class T>
  void write(std::span<const T> values) {
    write_selection(dtype_of<T>, std::as_bytes(values), nullptr);
  }
  /// Writes a part, which has no stride and no blocks.
  template <class T>
  void write(const Hyperslab& part, std::span<const T> values) {
    write_selection(dtype_of<T>, std::as_bytes(values), &part);
  }

 private:
  friend class FileWriter;
  using ObjectWriter::ObjectWriter;
  void write_selection(DType type, std::span<const std::byte> values, const Hyperslab* part);
};

/// A new HDF5 file; as an ObjectWriter it is its root group. One that was not closed by close() is not to be
/// trusted.
class FileWriter : public ObjectWriter {
 public:
  /// Starts a new file, in place of one of that name. Files that others may read are written with
  /// write_hdf5_atomically.
  static FileWriter create(const std::filesystem::path& path);

  /// Makes a dataset of a type other than bf16 and f16. Its elements are to be written before the file is
  /// closed. The name may be a path ("layer/3/weight"): groups on the way are made too.
  DatasetWriter create_dataset(const std::string& name, DType type, const Extents& extents);

  /// Makes a dataset and writes it whole.
  template <class T>
  void write(const std::string& name, std::span<const T> values, const Extents& extents) {
    create_dataset(name, dtype_of<T>, extents).write(values);
  }

  /// Brings everything to the file and closes it; a second call does nothing. Throws Error when that fails
  /// (disk full).
  void close();

 private:
  using ObjectWriter::ObjectWriter;
};

/// write_atomically for an HDF5 file: `write` fills the new file, which is closed for it.
void write_hdf5_atomically(const std::filesystem::path& path,
                           const std::function<void(FileWriter& file)>& write);

}  // namespace annulus::io
