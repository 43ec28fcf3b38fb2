#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace annulus::io::detail {

/// What errno means and what to do about it: "No space left on device: free some space or write elsewhere".
std::string explain(int error);

/// Throws Error "cannot <action> '<path>': <explain(errno)>" unless a call of the operating system succeeded.
/// errno is read after the call was made, which as an argument of require() it need not be.
void require_system(bool succeeded, std::string_view action, const std::filesystem::path& path);

}  // namespace annulus::io::detail
