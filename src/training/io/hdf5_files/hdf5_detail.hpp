#pragma once

#include <hdf5.h>

#include <mutex>
#include <string>
#include <string_view>

#include <annulus/base/error.hpp>

#include "training/io/hdf5_files/hdf5_writer.hpp"

namespace annulus::io::detail {

static_assert(sizeof(hid_t) == sizeof(std::int64_t), "Handle keeps hid_t in 64 bits");

/// Held around every call of HDF5: the one mutex of the process, and no printing of HDF5's error stack
/// meanwhile.
class Hdf5Lock {
 public:
  Hdf5Lock();
  ~Hdf5Lock();
  Hdf5Lock(const Hdf5Lock&) = delete;
  Hdf5Lock& operator=(const Hdf5Lock&) = delete;

 private:
  std::unique_lock<std::recursive_mutex> lock_;
  H5E_auto2_t printer_ = nullptr;
  void* printer_data_ = nullptr;
};

/// HDF5's own account of the failure that just happened, its innermost message, and what to do:
/// "No space left on device: free some space or write elsewhere".
std::string hdf5_failure();

/// Throws the Error for a failed call: "cannot <action> '<object>' in '<file>': <hdf5_failure()>".
[[noreturn]] void hdf5_fail(std::string_view action, std::string_view object, std::string_view file);

/// Passes the result of an HDF5 call on, or throws the Error when it is negative.
template <class Result>
Result hdf5_check(Result result, std::string_view action, std::string_view object, std::string_view file) {
  if (result < 0) hdf5_fail(action, object, file);
  return result;
}

/// The type of elements in files, and in the memory of little-endian machines.
hid_t hdf5_type(DType type);

/// "3-dimensional" dataspace of these extents (a scalar for none).
Handle make_space(const Extents& extents, std::string_view object, std::string_view file);

/// Makes files opened through these access properties use the driver for writing: plain POSIX calls, but a
/// write that fails is remembered in `state` instead of being reported to HDF5. HDF5 1.10 does not survive
/// failing writes: it keeps what it cannot flush, tries again when the file is closed and when the process
/// ends, and crashes there. So from the first failure on, writes are swallowed, HDF5 finishes in peace, and
/// Annulus reports the error from `state`. `state` must outlive the file.
void set_writing_driver(hid_t access_properties, FileState& state);

}  // namespace annulus::io::detail
