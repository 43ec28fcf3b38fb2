#include "training/io/hdf5_files/hdf5_writer.hpp"

#include "base/system_error.hpp"
#include "hdf5_detail.hpp"
#include "training/io/atomic.hpp"
#include "training/io/crc32.hpp"

namespace annulus::io {

using detail::Handle;
using detail::hdf5_check;
using detail::Hdf5Lock;

ObjectWriter::ObjectWriter(Handle handle, std::shared_ptr<detail::FileState> state, std::string name)
    : state_(std::move(state)), handle_(std::move(handle)), name_(std::move(name)) {}

void ObjectWriter::require_written() const {
  if (state_->write_error == 0) return;
  const std::string what = name_ == "/" ? file() : fmt::format("{}' in '{}", name_, file());
  fail("cannot write '{}': {}", what, system_error_text(state_->write_error));
}

/// Writes a scalar attribute in place of one of that name.
void ObjectWriter::write_scalar(const std::string& name, std::int64_t type, const void* value) {
  const auto step = [&](auto result) { return hdf5_check(result, "write the attribute", name, file()); };
  if (step(H5Aexists(id(), name.c_str())) > 0) step(H5Adelete(id(), name.c_str()));
  const Handle space(step(H5Screate(H5S_SCALAR)));
  const Handle attribute(step(H5Acreate2(id(), name.c_str(), type, space.get(), H5P_DEFAULT, H5P_DEFAULT)));
  step(H5Awrite(attribute.get(), type, value));
}

/// Writes the checksum that HDF5's strings of variable length do not have
/// (docs/decisions/0003-reading-hdf5.md).
void ObjectWriter::write_crc_of_strings() {
  std::int64_t crc = 0;
  for (const auto& [key, value] : strings_)
    for (const std::string& text : {key, value})
      crc = crc32_of(std::span<const char>(text.c_str(), text.size() + 1), static_cast<std::uint32_t>(crc));
  write_scalar(strings_attribute, H5T_STD_I64LE, &crc);
}

void ObjectWriter::set_attribute(const std::string& name, std::string_view value) {
  const Hdf5Lock lock;
  const auto step = [&](auto result) { return hdf5_check(result, "describe the type of", name, file()); };
  const Handle type(step(H5Tcopy(H5T_C_S1)));
  step(H5Tset_size(type.get(), H5T_VARIABLE));
  step(H5Tset_cset(type.get(), H5T_CSET_UTF8));
  std::string& text = strings_[name];
  text = value.substr(0, value.find('\0'));
  const char* const pointer = text.c_str();
  write_scalar(name, type.get(), &pointer);
  write_crc_of_strings();
  require_written();
}

void ObjectWriter::set_number(const std::string& name, std::int64_t type, const void* value) {
  const Hdf5Lock lock;
  write_scalar(name, type, value);
  if (strings_.erase(name) > 0) write_crc_of_strings();
  require_written();
}

void ObjectWriter::set_attribute(const std::string& name, double value) {
  set_number(name, H5T_IEEE_F64LE, &value);
}

void ObjectWriter::set_attribute(const std::string& name, std::int64_t value) {
  set_number(name, H5T_STD_I64LE, &value);
}

DatasetWriter FileWriter::create_dataset(const std::string& name, DType type, const Extents& extents) {
  const Hdf5Lock lock;
  const std::string full = name.starts_with('/') ? name : "/" + name;
  const auto step = [&](auto result) { return hdf5_check(result, "make the dataset", full, file()); };
  const hid_t stored = detail::hdf5_type(type);
  const Handle space = detail::make_space(extents, full, file());
  const Handle properties(step(H5Pcreate(H5P_DATASET_CREATE))), links(step(H5Pcreate(H5P_LINK_CREATE)));
  step(H5Pset_create_intermediate_group(links.get(), 1));
  step(H5Pset_obj_track_times(properties.get(), false));
  step(H5Pset_layout(properties.get(), H5D_CONTIGUOUS));
  step(H5Pset_alloc_time(properties.get(), H5D_ALLOC_TIME_EARLY));  // readers refuse what has no place
  Handle handle(
      step(H5Dcreate2(id(), name.c_str(), stored, space.get(), links.get(), properties.get(), H5P_DEFAULT)));
  require_written();
  return DatasetWriter(std::move(handle), state_, full, type, extents);
}

DatasetWriter::DatasetWriter(Handle handle, std::shared_ptr<detail::FileState> state, std::string name,
                             DType type, Extents extents)
    : ObjectWriter(std::move(handle), std::move(state), std::move(name)),
      type_(type),
      extents_(std::move(extents)) {}

void DatasetWriter::write_selection(DType type, const void* values, std::size_t size, const Hyperslab* part) {
  require(type == type_, "'{}': the dataset '{}' takes {}, not {}", file(), name(), name_of(type_),
          name_of(type));
  const Hdf5Lock lock;
  const auto step = [&](auto result) { return hdf5_check(result, "write", name(), file()); };
  const Handle target(step(H5Dget_space(id())));
  const Handle source = detail::make_space({size}, name(), file());
  if (part != nullptr) {
    require(part->start.size() == extents_.size() && part->count.size() == extents_.size() &&
                part->stride.empty() && part->block.empty(),
            "'{}': the part of the dataset '{}' that is to be written has {} dimensions, the dataset {}",
            file(), name(), part->start.size(), extents_.size());
    const std::vector<hsize_t> start(part->start.begin(), part->start.end()),
        count(part->count.begin(), part->count.end());
    step(H5Sselect_hyperslab(target.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr));
  }
  const auto wanted = static_cast<std::uint64_t>(step(H5Sget_select_npoints(target.get())));
  require(size == wanted, "'{}': {} elements were given for {} of the dataset '{}'", file(), size, wanted,
          name());
  if (size == 0) return;
  step(H5Dwrite(id(), detail::hdf5_type(type), source.get(), target.get(), H5P_DEFAULT, values));
  require_written();
}

FileWriter::FileWriter(Handle file, Handle root, std::shared_ptr<detail::FileState> state)
    : ObjectWriter(std::move(root), std::move(state), "/"), file_handle_(std::move(file)) {}

FileWriter FileWriter::create(const std::filesystem::path& path) {
  const Hdf5Lock lock;
  const auto state = std::make_shared<detail::FileState>(path.string());
  const auto step = [&](auto result) { return hdf5_check(result, "prepare writing", "/", state->path); };
  const Handle access(step(H5Pcreate(H5P_FILE_ACCESS))), creation(step(H5Pcreate(H5P_FILE_CREATE)));
  detail::set_writing_driver(access.get(), *state);
  // The oldest format whose metadata has checksums.
  step(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_V18));
  step(H5Pset_obj_track_times(creation.get(), false));  // of the root group
  const hid_t id = H5Fcreate(state->path.c_str(), H5F_ACC_TRUNC, creation.get(), access.get());
  require(id >= 0, "cannot write '{}': {}", state->path,
          state->write_error != 0 ? system_error_text(state->write_error) : detail::hdf5_failure());
  Handle file(id);
  Handle root(hdf5_check(H5Gopen2(id, "/", H5P_DEFAULT), "open the group", "/", state->path));
  return FileWriter(std::move(file), std::move(root), state);
}

void FileWriter::close() {
  if (file_handle_.get() < 0) return;
  const Hdf5Lock lock;
  handle_.reset();  // the root group
  const auto open_objects = H5Fget_obj_count(file_handle_.get(), H5F_OBJ_ALL | H5F_OBJ_LOCAL);
  require(open_objects <= 1, "'{}': {} datasets are still open: let them go before the file is closed",
          file(), open_objects - 1);
  if (H5Fclose(file_handle_.get()) < 0) fail("cannot close '{}': {}", file(), detail::hdf5_failure());
  file_handle_.release();
  require_written();
}

void write_hdf5_atomically(const std::filesystem::path& path, const std::function<void(FileWriter&)>& write) {
  write_atomically(path, [&](const std::filesystem::path& temporary) {
    FileWriter file = FileWriter::create(temporary);
    write(file);
    file.close();
  });
}

}  // namespace annulus::io
