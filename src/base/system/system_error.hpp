#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace annulus {

/// What errno means and what to do about it: "No space left on device: free some space or write elsewhere".
std::string system_error_text(int error);

/// Throws Error "cannot <action> '<path>': <system_error_text(errno)>" unless a call of the operating system
/// succeeded. errno is read after the call was made, which as an argument of require() it need not be.
void require_system(bool succeeded, std::string_view action, const std::filesystem::path& path);

}  // namespace annulus
