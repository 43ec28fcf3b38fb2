#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <annulus/base/dtype.hpp>

/// Files in HDF5. hdf5_writer.hpp writes them. What reads them is here, and is Annulus'
/// own: the HDF5 library trusts what a file says, follows links into other files, loads plugins, and may
/// crash on damaged metadata (docs/decisions/0003-reading-hdf5.md). Here a file leads nowhere else, and every
/// byte is checked.
///
/// Files of HDF5 1.8 to 1.14, and of h5py with any settings, are read: groups, hard links, attributes that
/// are one number or string, datasets in one piece or in chunks with the filters gzip, shuffle and
/// fletcher32. Refused are soft and external links, second names of an object, external storage, virtual
/// datasets, other filters and elements that were never written.
///
/// Every failure is an Error that names the file, the object or attribute, what is wrong and what to do.
/// Objects of one file may be used by several threads, but one object not by two at once.
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

/// Cuts an array of these extents (one dimension at least) into parts that lie in one stretch in row-major
/// order and hold `limit` elements at most, but one at least, and calls `use` with one after the other: how a
/// dataset is read or written that memory need not hold.
void for_slabs(const Extents& extents, std::uint64_t limit,
               const std::function<void(const Hyperslab& slab)>& use);

namespace hdf5 {
class ChunkCache;
class StoredFile;
class StoredObject;
struct StoredAttribute;
}  // namespace hdf5

/// Attribute of an object that Annulus wrote: the CRC-32 of its strings of variable length, the one part of
/// the metadata that HDF5 gives no checksum.
inline constexpr const char* strings_attribute = "strings_crc32";

/// What groups and datasets share: a place in a file, and attributes (scalars with a name).
class Object {
 public:
  /// Path of the file, as it was opened.
  const std::string& file() const;

  /// Path inside the file, "/" for the root group.
  const std::string& name() const;

  bool has_attribute(const std::string& name) const;

  /// Reads an attribute: strings of either kind, integers of any width. Throws Error when there is none of
  /// that name, or of another type, or it is no scalar, or too large for the type.
  std::string string_attribute(const std::string& name) const;
  std::int64_t integer_attribute(const std::string& name) const;

 protected:
  Object(std::shared_ptr<hdf5::StoredFile> stored, hdf5::StoredObject& object)
      : stored_(std::move(stored)), object_(&object) {}
  ~Object() = default;
  Object(const Object&) = default;
  Object(Object&&) noexcept = default;
  Object& operator=(const Object&) = default;
  Object& operator=(Object&&) noexcept = default;

  std::shared_ptr<hdf5::StoredFile> stored_;
  hdf5::StoredObject* object_;  // which the file owns

 private:
  const hdf5::StoredAttribute& scalar(const std::string& name) const;
  [[noreturn]] void wrong_type(const std::string& name, const char* wanted) const;
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

 private:
  friend class Group;
  Dataset(std::shared_ptr<hdf5::StoredFile> stored, hdf5::StoredObject& object);
  void read_selection(DType type, void* out, std::size_t size, const Hyperslab* part) const;
  DType type_;
  Extents extents_;
  std::shared_ptr<hdf5::ChunkCache> cache_;
};

/// A group: names of datasets and further groups. Names may be paths ("layer/3/weight").
class Group : public Object {
 public:
  /// True when there is an object of that name. Throws Error when the name is a link that is refused.
  bool has(const std::string& name) const;

  /// True when the object of that name, which must be there, is a group.
  bool is_group(const std::string& name) const;

  /// Names of the members, sorted.
  std::vector<std::string> names() const;

  /// Opens a group or a dataset. Throws Error when it is missing or of the other kind, when a dataset is of a
  /// type that no DType names, and when the file cannot hold its elements.
  Group group(const std::string& name) const;
  Dataset dataset(const std::string& name) const;

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

 private:
  std::string child_name(const std::string& name) const;
  /// Throws Error where there is none, which is called a `what`.
  hdf5::StoredObject& member(const std::string& name, const char* what) const;
};

/// An HDF5 file opened for reading; as a Group it is its root group.
class File : public Group {
 public:
  /// Throws Error that tells a missing file, one that is not HDF5, a truncated one, one that another program
  /// writes and one that may not be read apart.
  static File open(const std::filesystem::path& path);

 private:
  using Group::Group;
};

}  // namespace annulus::io
