#pragma once

#include <hdf5.h>

#include <mutex>
#include <string>
#include <string_view>

#include <annulus/base/error.hpp>
#include <annulus/io/hdf5_writer.hpp>

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

/// hdf5_check for calls that give an identifier to own.
inline Handle hdf5_own(hid_t id, std::string_view action, std::string_view object, std::string_view file) {
  return Handle(hdf5_check(id, action, object, file));
}

/// Little-endian type in files, and type in memory.
hid_t file_type(DType type);
hid_t memory_type(DType type);

/// "3-dimensional" dataspace of these extents (a scalar for none).
Handle make_space(const Extents& extents, std::string_view object, std::string_view file);

/// Makes the group `name` of the group `owner`, without times; `full` is its whole name.
Handle make_group(hid_t owner, const std::string& name, const std::string& full, const std::string& file);

/// Makes the groups on the way to `name` that are missing.
void make_groups(hid_t owner, const std::string& name, const std::string& full, const std::string& file);

}  // namespace annulus::io::detail
