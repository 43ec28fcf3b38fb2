#include "stored_file.hpp"

#include <algorithm>

namespace annulus::io::hdf5 {

namespace {

/// Who walks through groups by recursion must come to an end before the stack does.
constexpr std::ptrdiff_t deepest_path = 64;

}  // namespace

StoredObject::StoredObject(StoredFile& file, std::uint64_t address, std::string name)
    : file_(file), walk_(file.source, std::move(name)), header_(walk_, address) {}

bool StoredObject::dataset() const {
  return std::ranges::any_of(
      header_.messages(), [](const HeaderMessage& message) { return message.type == MessageType::layout; });
}

const StoredLinks& StoredObject::links() {
  const std::lock_guard lock(file_.mutex);
  if (!links_.has_value()) links_ = read_links(walk_, header_);
  return *links_;
}

const StoredAttributes& StoredObject::attributes() {
  const std::lock_guard lock(file_.mutex);
  if (!attributes_.has_value()) {
    attributes_ = read_attributes(walk_, header_);
    check_strings();
  }
  return *attributes_;
}

const StoredDataset& StoredObject::elements() {
  const std::lock_guard lock(file_.mutex);
  if (!elements_.has_value()) elements_ = read_dataset(walk_, header_);
  return *elements_;
}

std::string StoredObject::text(const StoredAttribute& attribute) {
  const std::lock_guard lock(file_.mutex);
  return text_of(walk_, attribute, file_.heap);
}

void StoredObject::check_strings() {
  const auto found = attributes_->find(strings_attribute);
  if (found == attributes_->end() || found->second.type.kind != StoredType::Kind::integer) return;
  const std::uint64_t stored = little_endian(found->second.data);
  if (stored == strings_crc32(walk_, *attributes_, file_.heap)) return;
  attributes_.reset();
  walk_.refuse(fmt::format("has strings whose CRC-32 is not the one in its attribute {}", strings_attribute),
               "the file is damaged; copy or write it again (delete that attribute if you changed strings)");
}

StoredObject* StoredObject::member(const std::string& name) {
  if (!group()) walk_.refuse("is no group", "the file is of another format");
  const StoredLinks& members = links();
  const auto found = members.find(name);
  if (found == members.end()) return nullptr;
  const std::string path = this->name() == "/" ? "/" + name : this->name() + "/" + name;
  const Walk walk(file_.source, path);
  walk.spend(path.size());
  if (std::ranges::count(path, '/') > deepest_path)
    walk.refuse(fmt::format("lies more than {} groups deep", deepest_path), "write flatter groups");
  switch (found->second.kind) {
    case StoredLink::Kind::hard:
      return &file_.object(found->second.address, path);
    case StoredLink::Kind::soft:
      walk.refuse("is a soft link, which Annulus does not follow", "write the object itself under this name");
    case StoredLink::Kind::external:
      walk.refuse("is an external link, which Annulus does not follow",
                  "write the object itself into this file");
    case StoredLink::Kind::other:
      walk.refuse("is a link of a kind that Annulus does not know",
                  "write the object itself under this name");
  }
  return nullptr;
}

StoredObject* StoredObject::find(const std::string& path) {
  const std::lock_guard lock(file_.mutex);
  StoredObject* object =
      !path.empty() && path.front() == '/' ? &file_.object(file_.source.root(), "/") : this;
  for (std::size_t begin = 0; begin < path.size() && object != nullptr;) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    if (end > begin) object = object->member(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return object;
}

StoredObject& StoredFile::object(std::uint64_t address, const std::string& name) {
  const std::lock_guard lock(mutex);
  auto& object = objects_[address];
  if (object == nullptr) {
    try {
      object = std::make_unique<StoredObject>(*this, address, name);
    } catch (...) {
      objects_.erase(address);
      throw;
    }
  }
  if (object->name() != name)
    Walk(source, name)
        .refuse(
            fmt::format("is another name (a hard link) of '{}', which Annulus does not read", object->name()),
            "write a copy");
  return *object;
}

}  // namespace annulus::io::hdf5
