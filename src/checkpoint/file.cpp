#include <fmt/format.h>

#include <span>
#include <system_error>

#include <annulus/io/crc32.hpp>
#include <annulus/io/slabs.hpp>

#include "checkpoint/seal.hpp"
#include "checkpoint/source.hpp"

namespace annulus::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr const char* checksum_attribute = "crc32";
constexpr std::uint64_t slab_elements = std::uint64_t{1} << 20;

void require_format(const io::File& file) {
  require(file.has_attribute("format") && file.string_attribute("format") == manifest_format,
          "{} is no checkpoint of Annulus (its attribute 'format' is not '{}'): give the right file",
          file.file(), manifest_format);
  const std::int64_t version = file.integer_attribute("version");
  require(version >= 1 && version < manifest_version,
          "{} has checkpoint version {}, this program reads versions 1 to {}: use the program that wrote it",
          file.file(), version, manifest_version);
}

Progress read_header(const io::File& file) {
  require_format(file);
  Progress progress;
  progress.step = file.integer_attribute("step");
  progress.epoch = file.integer_attribute("epoch");
  progress.sequences_read = file.integer_attribute("sequences_read");
  // Version 1 has the old name alone.
  progress.global_batch_size = file.integer_attribute(
      file.has_attribute("global_batch_size") ? "global_batch_size" : "update_sequences");
  progress.data_fingerprint = static_cast<std::uint32_t>(file.integer_attribute("data_fingerprint"));
  progress.config = file.string_attribute("config");
  return progress;
}

}  // namespace

Checkpoint::File::File(fs::path file, Check check) : Source(std::move(file)) {
  if (check == Check::whole) require_sealed(path);
  const io::File opened = io::File::open(path);
  progress = read_header(opened);
  creator = opened.has_attribute("creator") ? opened.string_attribute("creator") : std::string();
  const io::Group group = opened.group(std::string(name_of(Buffer::parameters)));
  for (const std::string& name : group.names()) tensors.push_back({name, group.dataset(name).extents()});
  for (const Buffer buffer : buffers) {
    const std::size_t here = opened.group(std::string(name_of(buffer))).names().size();
    require(here == tensors.size(), "{}: {} holds {} tensors, parameters {}: it is damaged; {}",
            path.string(), name_of(buffer), here, tensors.size(), bad_checkpoint_advice);
  }
}

std::uint64_t Checkpoint::File::bytes() const {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return error ? 0 : size;
}

void Checkpoint::File::read(Buffer buffer, std::size_t tensor, std::int64_t first, std::int64_t count,
                            const Use& use) const {
  const io::Dataset dataset =
      io::File::open(path).group(std::string(name_of(buffer))).dataset(tensors[tensor].name);
  const io::Extents& extents = tensors[tensor].extents;
  require(dataset.extents() == extents, "{}: {} has another shape than its parameters: it is damaged; {}",
          path.string(), dataset.name(), bad_checkpoint_advice);
  std::vector<float> values;
  std::uint32_t crc = 0;
  std::int64_t at = 0;  // elements of the dataset before the slab
  io::for_slabs(extents, slab_elements, [&](const io::Hyperslab& slab) {
    const auto size = static_cast<std::int64_t>(slab.elements());
    const std::int64_t from = std::max(first, at), to = std::min(first + count, at + size);
    if (from < to) {
      values.resize(static_cast<std::size_t>(size));
      dataset.read(slab, std::span<float>(values));
      crc = io::crc32_of(std::span<const float>(values), crc);
      use(from - first, std::span<const float>(values).subspan(static_cast<std::size_t>(from - at),
                                                               static_cast<std::size_t>(to - from)));
    }
    at += size;
  });
  require(count < at || crc == dataset.integer_attribute(checksum_attribute),
          "{}: dataset {} is damaged (its CRC-32 differs from the recorded one): {}", path.string(),
          dataset.name(), bad_checkpoint_advice);
}

}  // namespace annulus::checkpoint
