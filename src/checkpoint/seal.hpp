#pragma once

#include <filesystem>

/// The last line of a checkpoint of versions 1 and 2, behind the end of the HDF5 file: the CRC-32 of all
/// bytes before it. It tells a damaged or truncated file before anything of it is used.
namespace annulus::checkpoint {

/// Appends the line. Throws Error that names the file.
void seal_checkpoint(const std::filesystem::path& file);

/// Throws Error naming the file unless it ends with the line and the line is right.
void require_sealed(const std::filesystem::path& file);

}  // namespace annulus::checkpoint
