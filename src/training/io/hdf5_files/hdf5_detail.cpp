#include "hdf5_detail.hpp"

#include <bit>
#include <cstdlib>

#include "base/system_error.hpp"

namespace annulus::io {

namespace detail {

namespace {

std::recursive_mutex& hdf5_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

herr_t keep_innermost(unsigned, const H5E_error2_t* entry, void* text) {
  if (entry->desc != nullptr) *static_cast<std::string*>(text) = entry->desc;
  return 1;  // the walk starts at the innermost; one is enough
}

}  // namespace

Hdf5Lock::Hdf5Lock() : lock_(hdf5_mutex()) {
  H5Eget_auto2(H5E_DEFAULT, &printer_, &printer_data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Hdf5Lock::~Hdf5Lock() {
  H5Eset_auto2(H5E_DEFAULT, printer_, printer_data_);
}

void Handle::reset() noexcept {
  if (id_ < 0) return;
  const Hdf5Lock lock;
  H5Idec_ref(release());
}

std::string hdf5_failure() {
  std::string message;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_innermost, &message);
  // What the operating system said stands as "errno = 28" among much else.
  if (const auto at = message.find("errno = "); at != std::string::npos) {
    return system_error_text(std::atoi(message.c_str() + at + 8));
  }
  return "HDF5 says '" + (message.empty() ? "no reason" : message) + "'";
}

void hdf5_fail(std::string_view action, std::string_view object, std::string_view file) {
  fail("cannot {} '{}' in '{}': {}", action, object, file, hdf5_failure());
}

hid_t hdf5_type(DType type) {
  static_assert(std::endian::native == std::endian::little);
  switch (type) {
    case DType::u8:
      return H5T_STD_U8LE;
    case DType::u16:
      return H5T_STD_U16LE;
    case DType::u32:
      return H5T_STD_U32LE;
    case DType::u64:
      return H5T_STD_U64LE;
    case DType::i32:
      return H5T_STD_I32LE;
    case DType::i64:
      return H5T_STD_I64LE;
    case DType::f32:
      return H5T_IEEE_F32LE;
    case DType::f64:
      return H5T_IEEE_F64LE;
    default:
      fail("files hold no {}: store 16-bit floats as f32, or bit for bit as u16", name_of(type));
  }
}

Handle make_space(const Extents& extents, std::string_view object, std::string_view file) {
  const std::vector<hsize_t> sizes(extents.begin(), extents.end());
  const hid_t id = sizes.empty() ? H5Screate(H5S_SCALAR)
                                 : H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr);
  return Handle(hdf5_check(id, "describe the extents of", object, file));
}

}  // namespace detail
}  // namespace annulus::io
