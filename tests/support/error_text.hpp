#pragma once

#include <string>

#include <annulus/base/error.hpp>

namespace annulus::test {

/// The message of the Error that `call` throws; "no error" when it throws none.
template <class Call>
std::string error_text(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace annulus::test
