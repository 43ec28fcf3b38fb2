// Site profiles (docs/formats/site-profile.md).
#include <annulus/machine/profile.hpp>

#include "fuzz.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace annulus;
  fuzz::accepts("", [&] {
    machine::Profile profile;
    if (!fuzz::accepts("input.toml",
                       [&] { profile = machine::parse_profile(fuzz::text_of(data, size), "input.toml"); }))
      return;
    fuzz::expect(machine::ranks_per_node(profile) >= 1, "a rank on each node");
  });
  return 0;
}
