#include "training/io/hdf5_files/hdf5.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include <annulus/base/error.hpp>

#include "training/io/hdf5/stored_file.hpp"

namespace annulus::io {

std::uint64_t Hyperslab::elements() const {
  std::uint64_t product = 1;
  for (std::size_t i = 0; i < count.size(); ++i) product *= count[i] * (block.empty() ? 1 : block[i]);
  return product;
}

void for_slabs(const Extents& extents, std::uint64_t limit,
               const std::function<void(const Hyperslab&)>& use) {
  require(!extents.empty(), "a scalar cannot be cut into slabs: give it one dimension");
  if (std::find(extents.begin(), extents.end(), 0u) != extents.end()) return;
  // The dimension that is cut: those behind it go whole, those before it one index at a time.
  std::size_t cut = extents.size() - 1;
  std::uint64_t behind = 1;
  while (cut > 0 && behind * extents[cut] <= limit) behind *= extents[cut--];
  const std::uint64_t step = std::max<std::uint64_t>(1, limit / behind);

  Hyperslab slab{Extents(extents.size(), 0), extents};
  std::fill_n(slab.count.begin(), cut, 1u);
  for (;;) {
    for (std::uint64_t begin = 0; begin < extents[cut]; begin += step) {
      slab.start[cut] = begin;
      slab.count[cut] = std::min(step, extents[cut] - begin);
      use(slab);
    }
    std::size_t d = cut;
    while (d > 0 && ++slab.start[d - 1] == extents[d - 1]) slab.start[--d] = 0;
    if (d == 0) return;
  }
}

const std::string& Object::file() const {
  return stored_->source.path();
}
const std::string& Object::name() const {
  return object_->name();
}

bool Object::has_attribute(const std::string& name) const {
  return object_->attributes().contains(name);
}

const hdf5::StoredAttribute& Object::scalar(const std::string& name) const {
  const auto& attributes = object_->attributes();
  const auto found = attributes.find(name);
  require(found != attributes.end(),
          "'{}': '{}' has no attribute '{}': the file is of another format or incomplete", file(),
          this->name(), name);
  const hdf5::StoredAttribute& attribute = found->second;
  require(attribute.elements == 1, "'{}': the attribute '{}' of '{}' has {} elements: write it as a scalar",
          file(), name, this->name(),
          attribute.elements ? fmt::to_string(*attribute.elements) : "an unknown number of");
  return attribute;
}

void Object::wrong_type(const std::string& name, const char* wanted) const {
  fail("'{}': the attribute '{}' of '{}' is not {}: write it as one", file(), name, this->name(), wanted);
}

std::string Object::string_attribute(const std::string& name) const {
  using Kind = hdf5::StoredType::Kind;
  const hdf5::StoredAttribute& attribute = scalar(name);
  if (attribute.type.kind != Kind::fixed_text && attribute.type.kind != Kind::variable_text)
    wrong_type(name, "a string");
  return object_->text(attribute);
}

std::int64_t Object::integer_attribute(const std::string& name) const {
  const hdf5::StoredAttribute& attribute = scalar(name);
  if (attribute.type.kind != hdf5::StoredType::Kind::integer) wrong_type(name, "an integer");
  hdf5::Bytes bytes = attribute.data;
  if (attribute.type.big_endian) std::reverse(bytes.begin(), bytes.end());
  const std::uint64_t value = hdf5::little_endian(bytes);
  if (attribute.type.is_signed) {
    const unsigned unused = 64 - 8 * attribute.type.size;
    return static_cast<std::int64_t>(value << unused) >> unused;
  }
  if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    wrong_type(name, "an integer below 2^63");
  return static_cast<std::int64_t>(value);
}

Dataset::Dataset(std::shared_ptr<hdf5::StoredFile> stored, hdf5::StoredObject& object)
    : Object(std::move(stored), object),
      type_(*object.elements().type.dtype()),
      extents_(object.elements().extents),
      cache_(std::make_shared<hdf5::ChunkCache>()) {}

std::uint64_t Dataset::elements() const {
  return *hdf5::elements_of(extents_);
}

void Dataset::require_type(DType type) const {
  require(type == type_, "'{}': the dataset '{}' holds {}, not {}: write it in that type", file(), name(),
          name_of(type_), name_of(type));
}

void Dataset::require_rank(std::size_t rank) const {
  require(extents_.size() == rank, "'{}': the dataset '{}' has {} dimensions, not {}: write it in that shape",
          file(), name(), extents_.size(), rank);
}

namespace {

void require_inside(const Dataset& dataset, const Hyperslab& part) {
  const std::size_t rank = dataset.extents().size();
  const auto fits = [&](const Extents& extents, bool may_be_empty) {
    return extents.size() == rank || (may_be_empty && extents.empty());
  };
  require(
      fits(part.start, false) && fits(part.count, false) && fits(part.stride, true) && fits(part.block, true),
      "'{}': the part of the dataset '{}' that was asked for has {} dimensions, the dataset {}",
      dataset.file(), dataset.name(), part.start.size(), rank);
  for (std::size_t i = 0; i < rank; ++i) {
    const std::uint64_t stride = part.stride.empty() ? 1 : part.stride[i];
    const std::uint64_t block = part.block.empty() ? 1 : part.block[i];
    if (part.count[i] == 0 || block == 0) continue;
    const std::uint64_t end = part.start[i] + (part.count[i] - 1) * stride + block;
    require(end <= dataset.extents()[i],
            "'{}': elements up to {} of dimension {} were asked for, the dataset '{}' has extents [{}]: the "
            "file is shorter than expected",
            dataset.file(), end, i, dataset.name(), fmt::join(dataset.extents(), ", "));
  }
}

}  // namespace

void Dataset::read_selection(DType type, void* out, std::size_t size, const Hyperslab* part) const {
  require_type(type);
  const std::uint64_t wanted = part == nullptr ? elements() : part->elements();
  require(size == wanted, "'{}': room for {} elements was given, {} of the dataset '{}' were asked for",
          file(), size, wanted, name());
  if (part != nullptr) require_inside(*this, *part);
  hdf5::read_elements(object_->walk(), object_->elements(), part,
                      {static_cast<std::uint8_t*>(out), size * size_of(type)}, *cache_);
}

std::string Group::child_name(const std::string& name) const {
  if (!name.empty() && name.front() == '/') return name;
  return this->name() == "/" ? "/" + name : this->name() + "/" + name;
}

hdf5::StoredObject& Group::member(const std::string& name, const char* what) const {
  hdf5::StoredObject* const object = object_->find(name);
  require(object != nullptr, "'{}' has no {} '{}': the file is of another format or incomplete", file(), what,
          child_name(name));
  return *object;
}

bool Group::has(const std::string& name) const {
  return object_->find(name) != nullptr;
}

bool Group::is_group(const std::string& name) const {
  return member(name, "object").group();
}

std::vector<std::string> Group::names() const {
  std::vector<std::string> names;
  for (const auto& [name, link] : object_->links()) names.push_back(name);
  return names;
}

Group Group::group(const std::string& name) const {
  hdf5::StoredObject& object = member(name, "group");
  require(object.group(), "'{}': '{}' is no group: the file is of another format", file(), child_name(name));
  return Group(stored_, object);
}

Dataset Group::dataset(const std::string& name) const {
  hdf5::StoredObject& object = member(name, "dataset");
  require(object.dataset(), "'{}': '{}' is no dataset: the file is of another format", file(),
          child_name(name));
  return Dataset(stored_, object);
}

File File::open(const std::filesystem::path& path) {
  auto stored = std::make_shared<hdf5::StoredFile>(path);
  hdf5::StoredObject& root = stored->object(stored->source.root(), "/");
  root.walk().require_intact(root.group(), "the root group is no group");
  return File(std::move(stored), root);
}

}  // namespace annulus::io
