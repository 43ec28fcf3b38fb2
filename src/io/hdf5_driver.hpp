#pragma once

#include <hdf5.h>

#include "hdf5_detail.hpp"

namespace annulus::io::detail {

/// Makes files opened through these access properties use the driver for writing: plain POSIX calls, but a
/// write that fails is remembered in `state` instead of being reported to HDF5. HDF5 1.10 does not survive
/// failing writes: it keeps what it cannot flush, tries again when the file is closed and when the process
/// ends, and crashes there. So from the first failure on, writes are swallowed, HDF5 finishes in peace, and
/// Annulus reports the error from `state`. `state` must outlive the file.
void set_writing_driver(hid_t access_properties, FileState& state);

}  // namespace annulus::io::detail
