#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include <annulus/io/atomic.hpp>

#include "descriptor.hpp"
#include "hdf5_driver.hpp"
#include "system_error.hpp"

namespace annulus::io {

using detail::Handle;
using detail::hdf5_check;
using detail::Hdf5Lock;

namespace {

Handle access_properties(const std::string& path) {
  return detail::hdf5_own(H5Pcreate(H5P_FILE_ACCESS), "open", "/", path);
}

/// Says why a file cannot be HDF5 before HDF5 is asked, whose own messages are about its inner workings.
void require_hdf5_file(const std::string& path) {
  const detail::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  detail::require_system(file.get() >= 0, "open", path);
  char first = 0;
  const ssize_t count = ::read(file.get(), &first, 1);
  detail::require_system(count >= 0, "read", path);
  require(count > 0, "'{}' is empty: copy or write it again", path);
  const htri_t known = H5Fis_hdf5(path.c_str());
  require(known != 0, "'{}' is not an HDF5 file: check the path, or write it again", path);
}

}  // namespace

File::File(Handle file, Handle root, std::shared_ptr<detail::FileState> state)
    : Group(std::move(root), std::move(state), "/"), file_handle_(std::move(file)) {}

File File::open(const std::filesystem::path& path) {
  const Hdf5Lock lock;
  const auto state = std::make_shared<detail::FileState>(path.string());
  require_hdf5_file(state->path);
  const Handle access = access_properties(state->path);
  // Locks where the file system has them; on the parallel file systems that have none, reading must go on.
  hdf5_check(H5Pset_file_locking(access.get(), true, true), "open", "/", state->path);
  const hid_t id = H5Fopen(state->path.c_str(), H5F_ACC_RDONLY, access.get());
  require(id >= 0, "cannot open '{}': {}", state->path, detail::hdf5_failure());
  Handle file(id);
  Handle root = detail::hdf5_own(H5Gopen2(id, "/", H5P_DEFAULT), "open the group", "/", state->path);
  return File(std::move(file), std::move(root), state);
}

File File::create(const std::filesystem::path& path) {
  const Hdf5Lock lock;
  const auto state = std::make_shared<detail::FileState>(path.string());
  const Handle access = access_properties(state->path);
  detail::set_writing_driver(access.get(), *state);
  const hid_t id = H5Fcreate(state->path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get());
  require(id >= 0, "cannot write '{}': {}", state->path,
          state->write_error != 0 ? detail::explain(state->write_error) : detail::hdf5_failure());
  Handle file(id);
  Handle root = detail::hdf5_own(H5Gopen2(id, "/", H5P_DEFAULT), "open the group", "/", state->path);
  return File(std::move(file), std::move(root), state);
}

File::File(File&& other) noexcept = default;

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    file_handle_.reset();
    Group::operator=(std::move(other));
    file_handle_ = std::move(other.file_handle_);
  }
  return *this;
}

File::~File() = default;

void File::close() {
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

void write_hdf5_atomically(const std::filesystem::path& path, const std::function<void(File&)>& write) {
  write_atomically(path, [&](const std::filesystem::path& temporary) {
    File file = File::create(temporary);
    write(file);
    file.close();
  });
}

}  // namespace annulus::io
