#include "hdf5_detail.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

namespace annulus::io::detail {

namespace {

/// What HDF5 passes to the driver: FileState of the file that is being opened.
struct DriverInfo {
  FileState* state;
};

/// A file as HDF5 sees it; it knows the first member.
struct DriverFile {
  H5FD_t base;
  FileState* state;
  int descriptor;
  haddr_t allocated;  // end of what HDF5 has given out
  haddr_t size;       // end of what was written
};

DriverFile& of(H5FD_t* file) {
  return *reinterpret_cast<DriverFile*>(file);
}
const DriverFile& of(const H5FD_t* file) {
  return *reinterpret_cast<const DriverFile*>(file);
}

void remember(DriverFile& file) {
  if (file.state->write_error == 0) file.state->write_error = errno;
}

H5FD_t* open(const char* name, unsigned flags, hid_t access_properties, haddr_t) {
  const auto* info = static_cast<const DriverInfo*>(H5Pget_driver_info(access_properties));
  if (info == nullptr) return nullptr;
  const int mode = O_RDWR | O_CLOEXEC | O_NOFOLLOW | ((flags & H5F_ACC_CREAT) != 0 ? O_CREAT : 0) |
                   ((flags & H5F_ACC_TRUNC) != 0 ? O_TRUNC : 0) | ((flags & H5F_ACC_EXCL) != 0 ? O_EXCL : 0);
  const int descriptor = ::open(name, mode, 0666);
  struct stat status {};
  if (descriptor < 0 || ::fstat(descriptor, &status) != 0) {
    info->state->write_error = errno;
    if (descriptor >= 0) ::close(descriptor);
    return nullptr;
  }
  auto* file = new (std::nothrow) DriverFile{};
  if (file == nullptr) {
    ::close(descriptor);
    return nullptr;
  }
  file->state = info->state;
  file->descriptor = descriptor;
  file->size = static_cast<haddr_t>(status.st_size);
  return &file->base;
}

herr_t close(H5FD_t* base) {
  DriverFile& file = of(base);
  if (::close(file.descriptor) != 0) remember(file);  // where network file systems tell of a full disk
  delete &file;
  return 0;
}

herr_t query(const H5FD_t*, unsigned long* flags) {
  *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
           H5FD_FEAT_AGGREGATE_SMALLDATA;
  return 0;
}

haddr_t allocated(const H5FD_t* file, H5FD_mem_t) {
  return of(file).allocated;
}

herr_t set_allocated(H5FD_t* file, H5FD_mem_t, haddr_t address) {
  of(file).allocated = address;
  return 0;
}

haddr_t written(const H5FD_t* file, H5FD_mem_t) {
  return of(file).size;
}

herr_t read(H5FD_t* base, H5FD_mem_t, hid_t, haddr_t address, std::size_t size, void* buffer) {
  DriverFile& file = of(base);
  auto* out = static_cast<char*>(buffer);
  while (size > 0) {
    const ssize_t count = ::pread(file.descriptor, out, size, static_cast<off_t>(address));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) remember(file);
    if (count <= 0) break;
    address += static_cast<haddr_t>(count);
    out += count;
    size -= static_cast<std::size_t>(count);
  }
  std::memset(out, 0, size);  // behind the end there are zeros
  return 0;
}

herr_t write(H5FD_t* base, H5FD_mem_t, hid_t, haddr_t address, std::size_t size, const void* buffer) {
  DriverFile& file = of(base);
  const auto* in = static_cast<const char*>(buffer);
  const haddr_t end = address + size;
  while (size > 0 && file.state->write_error == 0) {
    const ssize_t count = ::pwrite(file.descriptor, in, size, static_cast<off_t>(address));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      remember(file);
      break;
    }
    address += static_cast<haddr_t>(count);
    in += count;
    size -= static_cast<std::size_t>(count);
  }
  file.size = std::max(file.size, end);
  return 0;
}

herr_t truncate(H5FD_t* base, hid_t, hbool_t) {
  DriverFile& file = of(base);
  if (file.state->write_error == 0 && file.size != file.allocated &&
      ::ftruncate(file.descriptor, static_cast<off_t>(file.allocated)) != 0) {
    remember(file);
  }
  file.size = file.allocated;
  return 0;
}

H5FD_class_t make_class() {
  H5FD_class_t driver{};
#if H5_VERSION_GE(1, 13, 2)
  driver.version = H5FD_CLASS_VERSION;
  driver.value = static_cast<H5FD_class_value_t>(511);  // of the range for tests and private use
#endif
  driver.name = "annulus-writing";
  driver.maxaddr = (haddr_t{1} << 63) - 1;
  driver.fc_degree = H5F_CLOSE_WEAK;
  driver.fapl_size = sizeof(DriverInfo);
  driver.open = open;
  driver.close = close;
  driver.query = query;
  driver.get_eoa = allocated;
  driver.set_eoa = set_allocated;
  driver.get_eof = written;
  driver.read = read;
  driver.write = write;
  driver.truncate = truncate;
  const H5FD_mem_t kinds[] = H5FD_FLMAP_DICHOTOMY;
  std::copy(std::begin(kinds), std::end(kinds), driver.fl_map);
  return driver;
}

}  // namespace

void set_writing_driver(hid_t access_properties, FileState& state) {
  static const H5FD_class_t driver = make_class();
  static const hid_t id = hdf5_check(H5FDregister(&driver), "prepare writing", "/", state.path);
  const DriverInfo info{&state};
  hdf5_check(H5Pset_driver(access_properties, id, &info), "prepare writing", "/", state.path);
}

}  // namespace annulus::io::detail
