#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <annulus/base/dtype.hpp>

/// Files in HDF5, through its C interface and without its types.
///
/// Debian's and Ubuntu's serial HDF5 is all that is needed; it need not be thread safe, because one mutex of
/// this process is held by every call below: one thread is inside HDF5 at a time. Each object may move
/// between threads, but one object is not to be used by two threads at once.
///
/// Every failure is an Error that names the file, the dataset or attribute, HDF5's own innermost message, and
/// what to do. HDF5 prints nothing itself.
namespace annulus::io {

/// Extents of a dataset or of a part of it, outermost dimension first.
using Extents = std::vector<std::uint64_t>;

/// A regular selection of a dataset: along each dimension `count` blocks of `block` elements, the first at
/// `start`, `stride` apart. Empty `stride` and `block` mean ones. Elements come in row-major order.
struct Hyperslab {
  Extents start, count;
  Extents stride{}, block{};
  std::uint64_t elements() const;
};

namespace detail {

/// Owns one HDF5 identifier (hid_t, which is 64 bits since HDF5 1.10).
class Handle {
 public:
  Handle() = default;
  explicit Handle(std::int64_t id) : id_(id) {}
  Handle(Handle&& other) noexcept : id_(other.release()) {}
  Handle& operator=(Handle&& other) noexcept;
  ~Handle() { reset(); }
  std::int64_t get() const { return id_; }
  std::int64_t release() noexcept {
    const std::int64_t id = id_;
    id_ = -1;
    return id;
  }
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

/// What groups and datasets share: a place in a file, and attributes (scalars with a name).
class Object {
 public:
  /// Path of the file, as it was opened.
  const std::string& file() const { return state_->path; }

  /// Path inside the file, "/" for the root group.
  const std::string& name() const { return name_; }

  bool has_attribute(const std::string& name) const;

  /// Sets an attribute, replacing one of that name. Strings are stored as variable-length UTF-8, integers as
  /// 64-bit signed, the rest as 64-bit floats: what h5py reads as str, int64 and float64.
  void set_attribute(const std::string& name, std::string_view value);
  void set_attribute(const std::string& name, double value);
  template <std::integral I>
  void set_attribute(const std::string& name, I value) {
    set_integer(name, static_cast<std::int64_t>(value));
  }

  /// Reads an attribute: strings of either kind, integers of any width, floats of any width (or integers).
  /// Throws Error when there is none of that name, or of another type, or it is no scalar, or too large for
  /// the type.
  std::string string_attribute(const std::string& name) const;
  std::int64_t integer_attribute(const std::string& name) const;
  double double_attribute(const std::string& name) const;

 protected:
  Object() = default;
  Object(Object&&) noexcept = default;
  Object& operator=(Object&& other) noexcept {
    std::swap(state_, other.state_);  // the old handle goes before the state that it needs
    std::swap(handle_, other.handle_);
    std::swap(name_, other.name_);
    return *this;
  }
  ~Object() = default;
  Object(detail::Handle handle, std::shared_ptr<detail::FileState> state, std::string name);
  std::int64_t id() const { return handle_.get(); }
  std::string child_name(const std::string& name) const;

  /// Throws Error when writing to the file has failed.
  void require_written() const;

  std::shared_ptr<detail::FileState> state_;  // before the handle, which needs it until it is closed
  detail::Handle handle_;
  std::string name_;

 private:
  void set_integer(const std::string& name, std::int64_t value);
};

/// An n-dimensional array in a file.
class Dataset : public Object {
 public:
  DType type() const { return type_; }
  const Extents& extents() const { return extents_; }
  std::uint64_t elements() const;

  /// Throws Error unless the dataset has this type (byte order apart) or this number of dimensions.
  void require_type(DType type) const;
  void require_rank(std::size_t rank) const;

  /// Reads all elements, in row-major order; `out` must have room for exactly those. T must be the stored
  /// type.
  template <class T>
  void read(std::span<T> out) const {
    read_selection(dtype_of<T>, out.data(), out.size(), nullptr);
  }
  /// Reads a part.
  template <class T>
  void read(const Hyperslab& part, std::span<T> out) const {
    read_selection(dtype_of<T>, out.data(), out.size(), &part);
  }
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
  friend class Group;
  Dataset(detail::Handle handle, std::shared_ptr<detail::FileState> state, std::string name, DType type,
          Extents extents);
  void read_selection(DType type, void* out, std::size_t size, const Hyperslab* part) const;
  void write_selection(DType type, const void* values, std::size_t size, const Hyperslab* part);
  DType type_;
  Extents extents_;
};

/// A group: names of datasets and further groups. Names may be paths ("layer/3/weight").
class Group : public Object {
 public:
  /// True when there is an object of that name.
  bool has(const std::string& name) const;

  /// True when the object of that name, which must be there, is a group.
  bool is_group(const std::string& name) const;

  /// Names of the members, sorted.
  std::vector<std::string> names() const;

  Group group(const std::string& name) const;
  Group create_group(const std::string& name);

  /// Opens a dataset. Throws Error when it is missing, is no dataset, or is of a type that no
  /// DType names.
  Dataset dataset(const std::string& name) const;

  /// Makes a dataset of a type other than bf16 and f16 (stored in one piece, without times, so that equal
  /// contents give equal bytes); groups on the way are made too. Its elements are to be written before the
  /// file is closed.
  Dataset create_dataset(const std::string& name, DType type, const Extents& extents);

  /// Makes a dataset and writes it whole.
  template <class T>
  void write(const std::string& name, std::span<const T> values, const Extents& extents) {
    create_dataset(name, dtype_of<T>, extents).write(values);
  }

  /// Reads a dataset whole.
  template <class T>
  std::vector<T> read(const std::string& name) const {
    const Dataset source = dataset(name);
    source.require_type(dtype_of<T>);
    std::vector<T> values(source.elements());
    source.read(std::span<T>(values));
    return values;
  }

 protected:
  using Object::Object;
};

/// An HDF5 file; as a Group it is its root group.
class File : public Group {
 public:
  /// Opens a file for reading. Throws Error that tells a missing file, one that is not HDF5, a truncated one
  /// and one that may not be read apart.
  static File open(const std::filesystem::path& path);

  /// Starts a new file, in place of one of that name. Files that others may read are written with
  /// write_hdf5_atomically.
  static File create(const std::filesystem::path& path);

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  /// Closes without throwing; a new file that was not closed by close() is not to be trusted.
  ~File();

  /// Brings everything to the file and closes it. Throws Error when that fails (disk full). Groups and
  /// datasets of the file must be gone before.
  void close();

 private:
  File(detail::Handle file, detail::Handle root, std::shared_ptr<detail::FileState> state);
  detail::Handle file_handle_;
};

/// write_atomically for an HDF5 file: `write` fills the new file, which is closed for it.
void write_hdf5_atomically(const std::filesystem::path& path, const std::function<void(File& file)>& write);

}  // namespace annulus::io
