#pragma once

#include <filesystem>

/// The last line of a checkpoint, behind the end of the HDF5 file: the CRC-32 of all bytes before it. It
/// tells a damaged or truncated checkpoint before anything of it is used.
namespace annulus::train {

/// What to do about a checkpoint that is damaged: the end of every message about one.
inline constexpr const char* bad_checkpoint_advice =
    "remove it, or resume from another one with --resume FILE";

/// Appends the line. Throws Error that names the file.
void seal_checkpoint(const std::filesystem::path& file);

/// Throws Error naming the file unless it ends with the line and the line is right.
void require_sealed(const std::filesystem::path& file);

}  // namespace annulus::train
