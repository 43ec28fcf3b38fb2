#include <cstring>
#include <map>

#include <annulus/io/crc32.hpp>

#include "base/system_error.hpp"
#include "hdf5/strings_attribute.hpp"
#include "hdf5_detail.hpp"

namespace annulus::io {

using detail::Handle;
using detail::hdf5_check;
using detail::hdf5_own;
using detail::Hdf5Lock;

ObjectWriter::ObjectWriter(Handle handle, std::shared_ptr<detail::FileState> state, std::string name)
    : state_(std::move(state)), handle_(std::move(handle)), name_(std::move(name)) {}

void ObjectWriter::require_written() const {
  if (state_->write_error == 0) return;
  const std::string what = name_ == "/" ? file() : fmt::format("{}' in '{}", name_, file());
  fail("cannot write '{}': {}", what, system_error_text(state_->write_error));
}

std::string ObjectWriter::child_name(const std::string& name) const {
  if (!name.empty() && name.front() == '/') return name;
  return name_ == "/" ? "/" + name : name_ + "/" + name;
}

namespace {

/// Writes a scalar attribute in place of one of that name; returns whether there was one.
bool write_scalar(hid_t owner, const std::string& name, const std::string& file, hid_t stored, hid_t memory,
                  const void* value) {
  const auto step = [&](auto result) { return hdf5_check(result, "write the attribute", name, file); };
  const bool known = step(H5Aexists(owner, name.c_str())) > 0;
  if (known) step(H5Adelete(owner, name.c_str()));
  const Handle space(step(H5Screate(H5S_SCALAR)));
  const Handle attribute(
      step(H5Acreate2(owner, name.c_str(), stored, space.get(), H5P_DEFAULT, H5P_DEFAULT)));
  step(H5Awrite(attribute.get(), memory, value));
  return known;
}

Handle variable_text(const std::string& file) {
  const auto step = [&](auto result) { return hdf5_check(result, "describe the type of", "a string", file); };
  Handle type(step(H5Tcopy(H5T_C_S1)));
  step(H5Tset_size(type.get(), H5T_VARIABLE));
  step(H5Tset_cset(type.get(), H5T_CSET_UTF8));
  return type;
}

using Strings = std::map<std::string, std::string>;

herr_t collect_string(hid_t owner, const char* name, const H5A_info_t*, void* strings) {
  try {
    const Handle attribute(H5Aopen(owner, name, H5P_DEFAULT));
    const Handle type(H5Aget_type(attribute.get()));
    if (H5Tis_variable_str(type.get()) <= 0) return 0;
    char* text = nullptr;
    if (H5Aread(attribute.get(), type.get(), &text) < 0) return -1;
    (*static_cast<Strings*>(strings))[name] = text == nullptr ? "" : text;
    H5free_memory(text);
    return 0;
  } catch (...) {
    return -1;  // C code between here and the caller: no exception may pass
  }
}

/// Writes the checksum that HDF5's strings of variable length do not have
/// (docs/decisions/0003-reading-hdf5.md).
void write_crc_of_strings(hid_t owner, const std::string& name, const std::string& file) {
  Strings strings;
  hdf5_check(H5Aiterate2(owner, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, collect_string, &strings),
             "read the attributes of", name, file);
  std::int64_t crc = 0;
  for (const auto& [key, value] : strings) {
    for (const std::string& text : {key, value})
      crc = crc32_of(std::span<const char>(text.c_str(), text.size() + 1), static_cast<std::uint32_t>(crc));
  }
  write_scalar(owner, hdf5::strings_attribute, file, H5T_STD_I64LE, H5T_NATIVE_INT64, &crc);
}

}  // namespace

void ObjectWriter::set_attribute(const std::string& name, std::string_view value) {
  const Hdf5Lock lock;
  const Handle type = variable_text(file());
  const std::string text(value);
  const char* pointer = text.c_str();
  write_scalar(id(), name, file(), type.get(), type.get(), &pointer);
  write_crc_of_strings(id(), this->name(), file());
  require_written();
}

void ObjectWriter::set_attribute(const std::string& name, double value) {
  const Hdf5Lock lock;
  // In place of a string it changes what the checksum of strings is over.
  if (write_scalar(id(), name, file(), H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &value))
    write_crc_of_strings(id(), this->name(), file());
  require_written();
}

void ObjectWriter::set_integer(const std::string& name, std::int64_t value) {
  const Hdf5Lock lock;
  if (write_scalar(id(), name, file(), H5T_STD_I64LE, H5T_NATIVE_INT64, &value))
    write_crc_of_strings(id(), this->name(), file());
  require_written();
}

}  // namespace annulus::io
