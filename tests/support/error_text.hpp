#pragma once

#include <gmock/gmock.h>

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

/// Matches a message that has all of these texts: the names of the file, key or rank that it is about.
template <class... Texts>
auto mentions(const Texts&... texts) {
  return testing::AllOf(testing::HasSubstr(std::string(texts))...);
}

}  // namespace annulus::test

namespace annulus {
using test::error_text, test::mentions;  // in every module's namespace
}
