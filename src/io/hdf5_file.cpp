#include <fcntl.h>
#include <unistd.h>

#include <annulus/io/atomic.hpp>
#include <cerrno>
#include <utility>

#include "descriptor.hpp"
#include "hdf5_detail.hpp"
#include "system_error.hpp"

namespace annulus::io {

using detail::Handle;
using detail::hdf5_check;
using detail::Hdf5Lock;

namespace {

/// File access: locks where the file system has them. Some parallel file systems have none, and there reading
/// must go on.
Handle access_properties(const std::string& path) {
  const auto step = [&](auto result) { return hdf5_check(result, "open", "/", path); };
  Handle properties(step(H5Pcreate(H5P_FILE_ACCESS)));
  step(H5Pset_file_locking(properties.get(), true, true));
  return properties;
}

/// Says why a file cannot be HDF5 before HDF5 is asked, whose own messages are about its inner workings.
void require_hdf5_file(const std::string& path) {
  const detail::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  require(file.get() >= 0, "cannot open '{}': {}", path, detail::explain(errno));
  char first = 0;
  const ssize_t count = ::read(file.get(), &first, 1);
  require(count >= 0, "cannot read '{}': {}", path, detail::explain(errno));
  require(count > 0, "'{}' is empty: copy or write it again", path);
  const htri_t known = H5Fis_hdf5(path.c_str());
  require(known != 0, "'{}' is not an HDF5 file: check the path, or write it again", path);
}

}  // namespace

File::File(Handle file, Handle root, std::shared_ptr<const std::string> path, bool writable)
    : Group(std::move(root), std::move(path), "/"), file_handle_(std::move(file)), writable_(writable) {}

File File::open(const std::filesystem::path& path) {
  const Hdf5Lock lock;
  auto name = std::make_shared<const std::string>(path.string());
  require_hdf5_file(*name);
  const Handle access = access_properties(*name);
  const hid_t id = H5Fopen(name->c_str(), H5F_ACC_RDONLY, access.get());
  require(id >= 0, "cannot open '{}': {}", *name, detail::hdf5_failure());
  Handle file(id);
  Handle root = detail::hdf5_own(H5Gopen2(id, "/", H5P_DEFAULT), "open the group", "/", *name);
  return File(std::move(file), std::move(root), std::move(name), false);
}

File File::create(const std::filesystem::path& path) {
  const Hdf5Lock lock;
  auto name = std::make_shared<const std::string>(path.string());
  const Handle access = access_properties(*name);
  const hid_t id = H5Fcreate(name->c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get());
  require(id >= 0, "cannot write '{}': {}", *name, detail::hdf5_failure());
  Handle file(id);
  Handle root = detail::hdf5_own(H5Gopen2(id, "/", H5P_DEFAULT), "open the group", "/", *name);
  return File(std::move(file), std::move(root), std::move(name), true);
}

File::File(File&& other) noexcept = default;

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    discard();
    Group::operator=(std::move(other));
    file_handle_ = std::move(other.file_handle_);
    writable_ = other.writable_;
  }
  return *this;
}

File::~File() {
  discard();
}

void File::close() {
  if (file_handle_.get() < 0) return;
  const Hdf5Lock lock;
  handle_.reset();  // the root group
  const auto open_objects = H5Fget_obj_count(file_handle_.get(), H5F_OBJ_ALL | H5F_OBJ_LOCAL);
  require(open_objects <= 1,
          "'{}': {} groups or datasets are still open: let them go before the file is closed", file(),
          open_objects - 1);
  // Flushing first keeps the identifier valid when it fails, so that discard() can clean up.
  if (writable_ && H5Fflush(file_handle_.get(), H5F_SCOPE_LOCAL) < 0) {
    fail("cannot write '{}': {}", file(), detail::hdf5_failure());
  }
  if (H5Fclose(file_handle_.get()) < 0) fail("cannot close '{}': {}", file(), detail::hdf5_failure());
  file_handle_.release();
}

void File::discard() noexcept {
  if (file_handle_.get() < 0) return;
  const Hdf5Lock lock;
  handle_.reset();
  const hid_t id = file_handle_.release();
  if (H5Fclose(id) >= 0 || !writable_) return;
  // On a full disk HDF5 keeps a file that it cannot flush, and tries again when the process ends. What is in
  // the file is lost anyway: emptied, it gives HDF5 the space to finish.
  if (::truncate(file_->c_str(), 0) == 0) H5Fclose(id);
}

void write_hdf5_atomically(const std::filesystem::path& path, const std::function<void(File&)>& write) {
  write_atomically(path, [&](const std::filesystem::path& temporary) {
    File file = File::create(temporary);
    write(file);
    file.close();
  });
}

}  // namespace annulus::io
