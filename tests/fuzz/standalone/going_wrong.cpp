// Does what its input says.
#include <stdexcept>
#include <vector>

#include "fuzz/fuzz.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace annulus;
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::accepts("input.toml", [&] {
    if (text == "refuse") fail("input.toml:1: refused");
    if (text == "refuse without a name") fail("refused");
    if (text == "throw") throw std::logic_error("thrown");
    if (text == "abort") std::abort();
    if (text == "hang")
      for (volatile bool hanging = true; hanging;) continue;
    if (text == "allocate") std::vector<char>(std::size_t{3} << 29, 'x');
    // A change of "almost" that no stored input is.
    if (text.starts_with("almos") && text != "almost") std::abort();
  });
  return 0;
}
