// model.safetensors.index.json, beside two files with the tensors a and b.
#include <unistd.h>

#include "fuzz.hpp"
#include "training/io/safetensors/writer.hpp"
#include "training/weights/tensor_folder.hpp"
#include "training/weights/weight_map.hpp"

namespace {

using namespace annulus;
namespace fs = std::filesystem;

/// A folder in memory that goes with the program.
class Folder {
 public:
  Folder() : path_("/dev/shm/annulus-fuzz-index-" + std::to_string(::getpid())) {
    fs::create_directories(path_);
    const std::uint8_t value = 1;
    for (const char* name : {"a", "b"})
      io::write_safetensors(path_ / name, {{name, DType::u8, {1}}}, {},
                            [&](io::SafetensorsWriter& file) { file.write(name, 0, std::span(&value, 1)); });
  }
  ~Folder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  const std::string index = (folder.path() / "model.safetensors.index.json").string();
  // Files are slow: most inputs end before any is looked at.
  if (!fuzz::accepts(index, [&] { weights::parse_weight_map(fuzz::text_of(data, size), index); })) return 0;
  {
    std::FILE* const file = std::fopen(index.c_str(), "wb");
    fuzz::expect(file != nullptr && std::fwrite(data, 1, size, file) == size, "room in memory");
    std::fclose(file);
  }
  fuzz::accepts(folder.path().string(), [&] {
    const weights::TensorFolder tensors(folder.path());
    for (const weights::TensorFolder::Location& place : tensors.all())
      fuzz::expect(place.file->path().starts_with(folder.path().string() + "/"), "a file of the folder");
  });
  return 0;
}
