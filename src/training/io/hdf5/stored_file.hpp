#pragma once

#include <memory>
#include <mutex>

#include "attributes.hpp"
#include "layout.hpp"
#include "links.hpp"

namespace annulus::io::hdf5 {

class StoredFile;

/// An object of an open file. What it holds is read when it is asked for, and once.
class StoredObject {
 public:
  StoredObject(StoredFile& file, std::uint64_t address, std::string name);

  const Walk& walk() const { return walk_; }
  const std::string& name() const { return walk_.object(); }
  bool group() const { return is_group(header_); }
  bool dataset() const;

  /// Members; the object must be a group.
  const StoredLinks& links();
  const StoredAttributes& attributes();
  const StoredDataset& elements();

  /// The text of an attribute that is a string.
  std::string text(const StoredAttribute& attribute);

  /// The member of this path ("a/b"); null when a name on the way is missing. Throws Error when one stands
  /// for another place (a soft or external link) or for an object that has another name already (a hard
  /// link).
  StoredObject* find(const std::string& path);

 private:
  void check_strings();
  StoredObject* member(const std::string& name);
  StoredFile& file_;
  Walk walk_;
  ObjectHeader header_;
  std::optional<StoredLinks> links_;
  std::optional<StoredAttributes> attributes_;
  std::optional<StoredDataset> elements_;
};

/// A file opened for reading, and the objects met in it.
class StoredFile {
 public:
  explicit StoredFile(const std::filesystem::path& path) : source(path) {}

  /// The object at an address. Throws Error when it was met under another name: every object is read under
  /// one name, so a walk through the file ends, and reads nothing twice.
  StoredObject& object(std::uint64_t address, const std::string& name);

  const Source source;
  GlobalHeap heap;
  std::recursive_mutex mutex;  // held while metadata is read

 private:
  std::map<std::uint64_t, std::unique_ptr<StoredObject>> objects_;
};

}  // namespace annulus::io::hdf5
