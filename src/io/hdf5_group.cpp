#include <algorithm>
#include <array>
#include <optional>

#include "hdf5_detail.hpp"

namespace annulus::io {

using detail::Handle;
using detail::hdf5_check;
using detail::hdf5_own;
using detail::Hdf5Lock;

namespace {

/// The DType of a type in a file, whatever its byte order.
std::optional<DType> recognise(hid_t type) {
  const H5T_class_t kind = H5Tget_class(type);
  const std::size_t size = H5Tget_size(type);
  if (kind == H5T_FLOAT) {
    if (size == 4) return DType::f32;
    if (size == 8) return DType::f64;
  } else if (kind == H5T_INTEGER && H5Tget_sign(type) == H5T_SGN_NONE) {
    switch (size) {
      case 1:
        return DType::u8;
      case 2:
        return DType::u16;
      case 4:
        return DType::u32;
      case 8:
        return DType::u64;
    }
  } else if (kind == H5T_INTEGER) {
    if (size == 4) return DType::i32;
    if (size == 8) return DType::i64;
  }
  return std::nullopt;
}

Extents extents_of(hid_t dataset, const std::string& name, const std::string& file) {
  const Handle space = hdf5_own(H5Dget_space(dataset), "read the extents of", name, file);
  std::array<hsize_t, H5S_MAX_RANK> sizes{};
  const int rank = hdf5_check(H5Sget_simple_extent_dims(space.get(), sizes.data(), nullptr),
                              "read the extents of", name, file);
  return Extents(sizes.begin(), sizes.begin() + rank);
}

}  // namespace

bool Group::has(const std::string& name) const {
  const Hdf5Lock lock;
  // H5Lexists wants every group on the way to exist.
  for (std::size_t end = name.find('/', 1);; end = name.find('/', end + 1)) {
    const std::string path = name.substr(0, end);
    if (hdf5_check(H5Lexists(id(), path.c_str(), H5P_DEFAULT), "look for", child_name(path), file()) == 0)
      return false;
    if (end == std::string::npos) return true;
  }
}

bool Group::is_group(const std::string& name) const {
  const Hdf5Lock lock;
  const Handle handle = hdf5_own(H5Oopen(id(), name.c_str(), H5P_DEFAULT), "open", child_name(name), file());
  return H5Iget_type(handle.get()) == H5I_GROUP;
}

std::vector<std::string> Group::names() const {
  const Hdf5Lock lock;
  std::vector<std::string> names;
  const auto collect = [](hid_t, const char* name, const H5L_info_t*, void* out) -> herr_t {
    try {
      static_cast<std::vector<std::string>*>(out)->emplace_back(name);
      return 0;
    } catch (...) {
      return -1;  // C code between here and the caller: no exception may pass
    }
  };
  hdf5_check(H5Literate(id(), H5_INDEX_NAME, H5_ITER_INC, nullptr, +collect, &names), "list the members of",
             this->name(), file());
  std::sort(names.begin(), names.end());
  return names;
}

Group Group::group(const std::string& name) const {
  const Hdf5Lock lock;
  require(has(name), "'{}' has no group '{}': the file is of another format or incomplete", file(),
          child_name(name));
  return Group(
      hdf5_own(H5Gopen2(id(), name.c_str(), H5P_DEFAULT), "open the group", child_name(name), file()), state_,
      child_name(name));
}

Group Group::create_group(const std::string& name) {
  const Hdf5Lock lock;
  const auto step = [&](auto result) {
    return hdf5_check(result, "make the group", child_name(name), file());
  };
  const Handle links(step(H5Pcreate(H5P_LINK_CREATE)));
  step(H5Pset_create_intermediate_group(links.get(), 1));
  Handle handle(step(H5Gcreate2(id(), name.c_str(), links.get(), H5P_DEFAULT, H5P_DEFAULT)));
  require_written();
  return Group(std::move(handle), state_, child_name(name));
}

Dataset Group::dataset(const std::string& name) const {
  const Hdf5Lock lock;
  const std::string full = child_name(name);
  require(has(name), "'{}' has no dataset '{}': the file is of another format or incomplete", file(), full);
  Handle handle = hdf5_own(H5Oopen(id(), name.c_str(), H5P_DEFAULT), "open", full, file());
  require(H5Iget_type(handle.get()) == H5I_DATASET, "'{}': '{}' is no dataset: the file is of another format",
          file(), full);
  const Handle type = hdf5_own(H5Dget_type(handle.get()), "read the type of", full, file());
  const auto element = recognise(type.get());
  require(element.has_value(),
          "'{}': the dataset '{}' has elements of a type that Annulus does not use: write it as u8, u16, "
          "u32, u64, "
          "i32, i64, f32 or f64",
          file(), full);
  Extents extents = extents_of(handle.get(), full, file());
  return Dataset(std::move(handle), state_, full, *element, std::move(extents));
}

Dataset Group::create_dataset(const std::string& name, DType type, const Extents& extents) {
  const Hdf5Lock lock;
  const std::string full = child_name(name);
  const auto step = [&](auto result) { return hdf5_check(result, "make the dataset", full, file()); };
  const Handle space = detail::make_space(extents, full, file());
  const Handle links(step(H5Pcreate(H5P_LINK_CREATE)));
  step(H5Pset_create_intermediate_group(links.get(), 1));
  const Handle properties(step(H5Pcreate(H5P_DATASET_CREATE)));
  step(H5Pset_obj_track_times(properties.get(), false));
  step(H5Pset_layout(properties.get(), H5D_CONTIGUOUS));
  Handle handle(step(H5Dcreate2(id(), name.c_str(), detail::file_type(type), space.get(), links.get(),
                                properties.get(), H5P_DEFAULT)));
  require_written();
  return Dataset(std::move(handle), state_, full, type, extents);
}

}  // namespace annulus::io
