#include <annulus/io/hdf5_writer.hpp>

#include <algorithm>

#include <annulus/io/atomic.hpp>

#include "base/system_error.hpp"
#include "hdf5_detail.hpp"
#include "hdf5_driver.hpp"

namespace annulus::io {

using detail::Handle;
using detail::hdf5_check;
using detail::hdf5_own;
using detail::Hdf5Lock;

GroupWriter GroupWriter::create_group(const std::string& name) {
  const Hdf5Lock lock;
  const std::string full = child_name(name);
  detail::make_groups(id(), name, full, file());
  Handle handle = detail::make_group(id(), name, full, file());
  require_written();
  return GroupWriter(std::move(handle), state_, full);
}

DatasetWriter GroupWriter::create_dataset(const std::string& name, DType type, const Extents& extents) {
  const Hdf5Lock lock;
  const std::string full = child_name(name);
  const auto step = [&](auto result) { return hdf5_check(result, "make the dataset", full, file()); };
  const hid_t stored = detail::file_type(type);
  detail::make_groups(id(), name, full, file());
  const Handle space = detail::make_space(extents, full, file());
  const Handle properties(step(H5Pcreate(H5P_DATASET_CREATE)));
  step(H5Pset_obj_track_times(properties.get(), false));
  step(H5Pset_layout(properties.get(), H5D_CONTIGUOUS));
  step(H5Pset_alloc_time(properties.get(), H5D_ALLOC_TIME_EARLY));  // readers refuse what has no place
  Handle handle(
      step(H5Dcreate2(id(), name.c_str(), stored, space.get(), H5P_DEFAULT, properties.get(), H5P_DEFAULT)));
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
    const auto sizes = [](const Extents& extents) {
      return std::vector<hsize_t>(extents.begin(), extents.end());
    };
    const auto start = sizes(part->start), count = sizes(part->count), stride = sizes(part->stride),
               block = sizes(part->block);
    require(start.size() == extents_.size() && count.size() == extents_.size(),
            "'{}': the part of the dataset '{}' that is to be written has {} dimensions, the dataset {}",
            file(), name(), start.size(), extents_.size());
    step(H5Sselect_hyperslab(target.get(), H5S_SELECT_SET, start.data(),
                             stride.empty() ? nullptr : stride.data(), count.data(),
                             block.empty() ? nullptr : block.data()));
  }
  const auto wanted = static_cast<std::uint64_t>(step(H5Sget_select_npoints(target.get())));
  require(size == wanted, "'{}': {} elements were given for {} of the dataset '{}'", file(), size, wanted,
          name());
  if (size == 0) return;
  step(H5Dwrite(id(), detail::memory_type(type), source.get(), target.get(), H5P_DEFAULT, values));
  require_written();
}

FileWriter::FileWriter(Handle file, Handle root, std::shared_ptr<detail::FileState> state)
    : GroupWriter(std::move(root), std::move(state), "/"), file_handle_(std::move(file)) {}

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
  Handle root = hdf5_own(H5Gopen2(id, "/", H5P_DEFAULT), "open the group", "/", state->path);
  return FileWriter(std::move(file), std::move(root), state);
}

FileWriter::FileWriter(FileWriter&& other) noexcept = default;

FileWriter& FileWriter::operator=(FileWriter&& other) noexcept {
  if (this != &other) {
    file_handle_.reset();
    GroupWriter::operator=(std::move(other));
    file_handle_ = std::move(other.file_handle_);
  }
  return *this;
}

FileWriter::~FileWriter() = default;

void FileWriter::close() {
  if (file_handle_.get() < 0) return;
  const Hdf5Lock lock;
  handle_.reset();  // the root group
  const auto open_objects = H5Fget_obj_count(file_handle_.get(), H5F_OBJ_ALL | H5F_OBJ_LOCAL);
  require(open_objects <= 1,
          "'{}': {} groups or datasets are still open: let them go before the file is closed", file(),
          open_objects - 1);
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
