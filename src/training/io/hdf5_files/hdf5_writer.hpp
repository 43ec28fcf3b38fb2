#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <annulus/base/dtype.hpp>

#include "training/io/hdf5_files/hdf5.hpp"

/// Writing HDF5 files, through the C interface of the HDF5 library and without its types.
///
/// Debian's and Ubuntu's serial HDF5 is all that is needed; it need not be thread safe, because one mutex of
/// this process is held by every call below: one thread is inside HDF5 at a time. Each object may move
/// between threads, but one object is not to be used by two threads at once.
///
/// Metadata has checksums (superblock 2, object headers 2: HDF5 1.8 and later, and h5py, read them), and each
/// object with strings the attribute strings_crc32: CRC-32 over its strings in order of their names, of each
/// the name, a NUL, the value, a NUL.
///
/// Every failure is an Error that names the file, the dataset or attribute, HDF5's own innermost message, and
/// what to do. HDF5 prints nothing itself.
namespace annulus::io {

namespace detail {

/// Owns one HDF5 identifier (hid_t, which is 64 bits since HDF5 1.10).
class Handle {
 public:
  Handle() = default;
  explicit Handle(std::int64_t id) : id_(id) {}
  Handle(Handle&& other) noexcept : id_(other.release()) {}
  ~Handle() { reset(); }
  std::int64_t get() const { return id_; }
  std::int64_t release() noexcept { return std::exchange(id_, -1); }
  void reset() noexcept;

 private:
  std::int64_t id_ = -1;
};

/// What all objects of a file share: its path, and the first error (errno) that writing to it met.
struct FileState {
  explicit FileState(std::string file) : path(std::move(file)) {}
  std::string path;
  int write_error = 0;
};

}  // namespace detail

/// What the root group and datasets that are being written share: a place in a file, and attributes.
class ObjectWriter {
 public:
  /// Path of the file, as it was made.
  const std::string& file() const { return state_->path; }

  /// Path inside the file, "/" for the root group.
  const std::string& name() const { return name_; }

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
  ObjectWriter(ObjectWriter&&) noexcept = default;
  ~ObjectWriter() = default;
  ObjectWriter(detail::Handle handle, std::shared_ptr<detail::FileState> state, std::string name);
  std::int64_t id() const { return handle_.get(); }

  /// Throws Error when writing to the file has failed.
  void require_written() const;

  std::shared_ptr<detail::FileState> state_;  // before the handle, which needs it until it is closed
  detail::Handle handle_;
  std::string name_;

 private:
  void write_scalar(const std::string& name, std::int64_t type, const void* value);
  void set_number(const std::string& name, std::int64_t type, const void* value);
  void write_crc_of_strings();

  std::map<std::string, std::string> strings_;  // attributes
};

/// An n-dimensional array that is being written.
class DatasetWriter : public ObjectWriter {
 public:
  DType type() const { return type_; }
  const Extents& extents() const { return extents_; }

  /// Writes all elements, in row-major order.
  template <class T>
  void write(std::span<const T> values) {
    write_selection(dtype_of<T>, values.data(), values.size(), nullptr);
  }
  /// Writes a part.
  template <class T>
  void write(const Hyperslab& part, std::span<const T> values) {
    write_selection(dtype_of<T>, values.data(), values.size(), &part);
  }

 private:
  friend class FileWriter;
  DatasetWriter(detail::Handle handle, std::shared_ptr<detail::FileState> state, std::string name, DType type,
                Extents extents);
  void write_selection(DType type, const void* values, std::size_t size, const Hyperslab* part);
  DType type_;
  Extents extents_;
};

/// A new HDF5 file; as an ObjectWriter it is its root group. One that was not closed by close() is not to be
/// trusted.
class FileWriter : public ObjectWriter {
 public:
  /// Starts a new file, in place of one of that name. Files that others may read are written with
  /// write_hdf5_atomically.
  static FileWriter create(const std::filesystem::path& path);

  /// Makes a dataset of a type other than bf16 and f16 (stored in one piece, without times, so that equal
  /// contents give equal bytes). Its elements are to be written before the file is closed. The name may be a
  /// path ("layer/3/weight"): groups on the way are made too.
  DatasetWriter create_dataset(const std::string& name, DType type, const Extents& extents);

  /// Makes a dataset and writes it whole.
  template <class T>
  void write(const std::string& name, std::span<const T> values, const Extents& extents) {
    create_dataset(name, dtype_of<T>, extents).write(values);
  }

  /// Brings everything to the file and closes it. Throws Error when that fails (disk full). Datasets of the
  /// file must be gone before.
  void close();

 private:
  FileWriter(detail::Handle file, detail::Handle root, std::shared_ptr<detail::FileState> state);
  detail::Handle file_handle_;
};

/// write_atomically for an HDF5 file: `write` fills the new file, which is closed for it.
void write_hdf5_atomically(const std::filesystem::path& path,
                           const std::function<void(FileWriter& file)>& write);

}  // namespace annulus::io
