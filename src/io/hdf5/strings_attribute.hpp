#pragma once

namespace annulus::io::hdf5 {

/// Attribute of an object that Annulus wrote: the CRC-32 of its strings of variable length (strings_crc32()),
/// the one part of the metadata that HDF5 gives no checksum.
inline constexpr const char* strings_attribute = "strings_crc32";

}  // namespace annulus::io::hdf5
