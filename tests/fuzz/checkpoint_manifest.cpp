// Manifests of checkpoints (docs/formats/checkpoint.md): as they come, and again under a first line that
// fits, which no change at random would hit. What is read is written again, and read again the same.
#include <fmt/format.h>

#include "training/checkpoint/manifest.hpp"

#include "fuzz.hpp"
#include "training/io/crc32.hpp"

namespace {

using namespace annulus;

void parse(const std::string& text) {
  fuzz::accepts("manifest.json", [&] {
    const checkpoint::Manifest manifest = checkpoint::Manifest::parse(text, "manifest.json");
    const std::string again = manifest.to_text();
    fuzz::expect(checkpoint::Manifest::parse(again, "manifest.json").to_text() == again, "the same manifest");
    std::uint64_t held = 0, elements = 0;
    for (const checkpoint::PartFile& part : manifest.parts) {
      fuzz::expect(part.file.find('/') == std::string::npos, "a file of the folder", part.file);
      for (const checkpoint::TensorPiece& piece : part.pieces)
        held += static_cast<std::uint64_t>(piece.count);
    }
    for (const checkpoint::StoredTensor& tensor : manifest.tensors)
      elements += static_cast<std::uint64_t>(tensor.elements());
    fuzz::expect(held == elements, "every element once");
  });
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  parse(text);
  const std::string rest = text.substr(text.find('\n') + 1);
  parse(fmt::format("{{\"crc32\":{:10},\n{}", io::crc32_of(std::span<const char>(rest)), rest));
  return 0;
}
