// pack.json of annulus-tokens pack (docs/formats/token-shards.md). What is read is written again, and read
// again the same.
#include "fuzz.hpp"
#include "training/data/packing/manifest.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace annulus;
  fuzz::accepts("pack.json", [&] {
    const data::PackManifest manifest = data::PackManifest::parse(fuzz::text_of(data, size), "pack.json");
    fuzz::expect(manifest.next.file >= 0 && manifest.next.offset >= 0, "a place in the inputs");
    const std::string again = manifest.to_text();
    fuzz::expect(data::PackManifest::parse(again, "pack.json").to_text() == again, "the same manifest",
                 again);
  });
  return 0;
}
