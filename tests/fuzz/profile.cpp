// Site profiles (docs/formats/site-profile.md).
#include "cluster/machine/profile.hpp"

#include "fuzz.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace annulus;
  fuzz::accepts("input.toml", [&] { machine::parse_profile(fuzz::text_of(data, size), "input.toml"); });
  return 0;
}
