// Files in safetensors layout: what is read is written again, and read again the same.
#include <algorithm>

#include "memory_file.hpp"
#include "training/io/safetensors/safetensors.hpp"
#include "training/io/safetensors/writer.hpp"

namespace {

using namespace annulus;

std::vector<std::byte> bytes_of(const io::SafetensorsFile& file, const io::SafetensorsTensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  file.read_bytes(tensor, 0, 1, bytes);
  return bytes;
}

void write_again(const io::SafetensorsFile& file) {
  std::vector<io::SafetensorsSpec> specs;
  for (const io::SafetensorsTensor& tensor : file.tensors())
    specs.push_back({tensor.name, *tensor.dtype, tensor.extents});
  // The writer follows no links, and the path to a file in memory is one.
  const std::string name = "/dev/shm/annulus-fuzz-" + std::to_string(::getpid());
  io::SafetensorsWriter writer(name, specs, file.metadata());
  for (const io::SafetensorsTensor& tensor : file.tensors())
    writer.write_elements(tensor.name, *tensor.dtype, 0, bytes_of(file, tensor));
  writer.finish();
  const io::SafetensorsFile again(name);
  ::unlink(name.c_str());
  fuzz::expect(again.metadata() == file.metadata(), "the same metadata");
  fuzz::expect(again.tensors().size() == file.tensors().size(), "as many tensors");
  for (const io::SafetensorsTensor& tensor : file.tensors()) {
    const io::SafetensorsTensor& other = again.tensor(tensor.name);
    fuzz::expect(other.type == tensor.type && other.extents == tensor.extents, "the same shape", tensor.name);
    fuzz::expect(bytes_of(again, other) == bytes_of(file, tensor), "the same elements", tensor.name);
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::MemoryFile input(data, size);
  fuzz::accepts(input.path(), [&] {
    const io::SafetensorsFile file(input.path());
    std::uint64_t bytes = 0;
    for (const io::SafetensorsTensor& tensor : file.tensors()) bytes += bytes_of(file, tensor).size();
    fuzz::expect(bytes <= size, "no more elements than bytes");
    const bool known =
        std::all_of(file.tensors().begin(), file.tensors().end(),
                    [](const io::SafetensorsTensor& tensor) { return tensor.dtype.has_value(); });
    if (known) write_again(file);
  });
  return 0;
}
