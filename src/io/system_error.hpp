#pragma once

#include <string>

namespace annulus::io::detail {

/// What errno means and what to do about it: "No space left on device: free some space or write elsewhere".
std::string explain(int error);

}  // namespace annulus::io::detail
