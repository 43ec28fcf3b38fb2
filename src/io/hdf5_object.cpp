#include <cstring>
#include <limits>

#include "hdf5_detail.hpp"
#include "system_error.hpp"

namespace annulus::io {

using detail::Handle;
using detail::hdf5_check;
using detail::hdf5_own;
using detail::Hdf5Lock;

Object::Object(Handle handle, std::shared_ptr<detail::FileState> state, std::string name)
    : state_(std::move(state)), handle_(std::move(handle)), name_(std::move(name)) {}

void Object::require_written() const {
  if (state_->write_error == 0) return;
  const std::string what = name_ == "/" ? file() : fmt::format("{}' in '{}", name_, file());
  fail("cannot write '{}': {}", what, detail::explain(state_->write_error));
}

std::string Object::child_name(const std::string& name) const {
  if (!name.empty() && name.front() == '/') return name;
  return name_ == "/" ? "/" + name : name_ + "/" + name;
}

bool Object::has_attribute(const std::string& name) const {
  const Hdf5Lock lock;
  return hdf5_check(H5Aexists(id(), name.c_str()), "look for the attribute", name, file()) > 0;
}

namespace {

/// Writes a scalar attribute in place of one of that name.
void write_scalar(hid_t owner, const std::string& name, const std::string& file, hid_t stored, hid_t memory,
                  const void* value) {
  const auto step = [&](auto result) { return hdf5_check(result, "write the attribute", name, file); };
  if (step(H5Aexists(owner, name.c_str())) > 0) step(H5Adelete(owner, name.c_str()));
  const Handle space(step(H5Screate(H5S_SCALAR)));
  const Handle attribute(
      step(H5Acreate2(owner, name.c_str(), stored, space.get(), H5P_DEFAULT, H5P_DEFAULT)));
  step(H5Awrite(attribute.get(), memory, value));
}

/// An attribute that is a scalar (or has one element), and its type in the file.
struct OpenAttribute {
  Handle attribute, type;
  H5T_class_t kind = H5T_NO_CLASS;
};

OpenAttribute open_scalar(hid_t owner, const Object& object, const std::string& name) {
  const std::string& file = object.file();
  require(hdf5_check(H5Aexists(owner, name.c_str()), "look for the attribute", name, file) > 0,
          "'{}': '{}' has no attribute '{}': the file is of another format or incomplete", file,
          object.name(), name);
  OpenAttribute open;
  open.attribute = hdf5_own(H5Aopen(owner, name.c_str(), H5P_DEFAULT), "open the attribute", name, file);
  open.type = hdf5_own(H5Aget_type(open.attribute.get()), "read the type of the attribute", name, file);
  open.kind = hdf5_check(H5Tget_class(open.type.get()), "read the type of the attribute", name, file);
  const Handle space =
      hdf5_own(H5Aget_space(open.attribute.get()), "read the extents of the attribute", name, file);
  const auto elements =
      hdf5_check(H5Sget_simple_extent_npoints(space.get()), "read the extents of the attribute", name, file);
  require(elements == 1, "'{}': the attribute '{}' of '{}' has {} elements: write it as a scalar", file, name,
          object.name(), elements);
  return open;
}

[[noreturn]] void wrong_attribute_type(const Object& object, const std::string& name, const char* wanted) {
  fail("'{}': the attribute '{}' of '{}' is not {}: write it as one", object.file(), name, object.name(),
       wanted);
}

}  // namespace

void Object::set_attribute(const std::string& name, std::string_view value) {
  const Hdf5Lock lock;
  const Handle type = hdf5_own(H5Tcopy(H5T_C_S1), "write the attribute", name, file());
  hdf5_check(H5Tset_size(type.get(), H5T_VARIABLE), "write the attribute", name, file());
  hdf5_check(H5Tset_cset(type.get(), H5T_CSET_UTF8), "write the attribute", name, file());
  const std::string text(value);
  const char* pointer = text.c_str();
  write_scalar(id(), name, file(), type.get(), type.get(), &pointer);
  require_written();
}

void Object::set_attribute(const std::string& name, double value) {
  const Hdf5Lock lock;
  write_scalar(id(), name, file(), H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &value);
  require_written();
}

void Object::set_integer(const std::string& name, std::int64_t value) {
  const Hdf5Lock lock;
  write_scalar(id(), name, file(), H5T_STD_I64LE, H5T_NATIVE_INT64, &value);
  require_written();
}

std::string Object::string_attribute(const std::string& name) const {
  const Hdf5Lock lock;
  const OpenAttribute open = open_scalar(id(), *this, name);
  if (open.kind != H5T_STRING) wrong_attribute_type(*this, name, "a string");
  const auto step = [&](auto result) { return hdf5_check(result, "read the attribute", name, file()); };
  if (step(H5Tis_variable_str(open.type.get())) > 0) {
    // The type in memory is the type in the file: HDF5 does not convert between ASCII and UTF-8.
    char* text = nullptr;
    step(H5Aread(open.attribute.get(), open.type.get(), &text));
    const std::string value = text == nullptr ? "" : text;
    step(H5free_memory(text));
    return value;
  }
  std::string text(H5Tget_size(open.type.get()), '\0');
  step(H5Aread(open.attribute.get(), open.type.get(), text.data()));
  const bool padded_with_spaces = H5Tget_strpad(open.type.get()) == H5T_STR_SPACEPAD;
  text.resize(std::min(text.size(), std::strlen(text.c_str())));
  while (padded_with_spaces && !text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

std::int64_t Object::integer_attribute(const std::string& name) const {
  const Hdf5Lock lock;
  const OpenAttribute open = open_scalar(id(), *this, name);
  if (open.kind != H5T_INTEGER) wrong_attribute_type(*this, name, "an integer");
  const auto step = [&](auto result) { return hdf5_check(result, "read the attribute", name, file()); };
  if (H5Tget_sign(open.type.get()) == H5T_SGN_NONE) {
    std::uint64_t value = 0;
    step(H5Aread(open.attribute.get(), H5T_NATIVE_UINT64, &value));
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      wrong_attribute_type(*this, name, "an integer below 2^63");
    }
    return static_cast<std::int64_t>(value);
  }
  std::int64_t value = 0;
  step(H5Aread(open.attribute.get(), H5T_NATIVE_INT64, &value));
  return value;
}

double Object::double_attribute(const std::string& name) const {
  const Hdf5Lock lock;
  const OpenAttribute open = open_scalar(id(), *this, name);
  if (open.kind != H5T_FLOAT && open.kind != H5T_INTEGER) wrong_attribute_type(*this, name, "a number");
  double value = 0;
  hdf5_check(H5Aread(open.attribute.get(), H5T_NATIVE_DOUBLE, &value), "read the attribute", name, file());
  return value;
}

}  // namespace annulus::io
