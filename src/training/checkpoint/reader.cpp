#include <annulus/training/checkpoint/reader.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <mutex>
#include <system_error>
#include <utility>

#include <annulus/base/error.hpp>

#include "base/file.hpp"
#include "training/checkpoint/manifest.hpp"
#include "training/io/crc32.hpp"
#include "training/io/safetensors/safetensors.hpp"

namespace annulus::checkpoint {

namespace fs = std::filesystem;

std::string_view name_of(Buffer buffer) {
  constexpr std::array<std::string_view, buffer_count> names = {"parameters", "first_moment",
                                                                "second_moment"};
  return names[static_cast<std::size_t>(buffer)];
}

std::int64_t StoredTensor::elements() const {
  std::int64_t product = 1;
  for (const std::uint64_t extent : extents) product *= static_cast<std::int64_t>(extent);
  return product;
}

/// A folder whose manifest has been read.
class Checkpoint::Folder {
 public:
  Folder(fs::path folder, Check check)
      : path(std::move(folder)), manifest(Manifest::parse(text_of(path), manifest_path(path).string())) {
    for (const StoredTensor& tensor : manifest.tensors) by_name.emplace(tensor.name, by_name.size());
    pieces_.resize(manifest.tensors.size());
    for (std::size_t part = 0; part < manifest.parts.size(); ++part)
      for (const TensorPiece& piece : manifest.parts[part].pieces)
        pieces_[piece.tensor].push_back({part, &piece});
    for (auto& of : pieces_)
      std::sort(of.begin(), of.end(),
                [](const StoredPiece& a, const StoredPiece& b) { return a.piece->first < b.piece->first; });
    files_.resize(manifest.parts.size());
    if (check == Check::whole)
      for (const PartFile& part : manifest.parts) require_size(part);
  }

  const fs::path path;
  const Manifest manifest;
  std::map<std::string_view, std::size_t> by_name;  // indices of tensors

  /// Reads elements that are there of a tensor that is there.
  void read(Buffer buffer, std::size_t tensor, std::int64_t first, std::int64_t count, const Use& use) const {
    std::vector<float> block;
    const std::int64_t end = first + count;
    const auto& pieces = pieces_[tensor];
    auto place = std::upper_bound(pieces.begin(), pieces.end(), first,
                                  [](std::int64_t at, const StoredPiece& p) { return at < p.piece->end(); });
    for (; place != pieces.end() && place->piece->first < end; ++place) {
      const TensorPiece& piece = *place->piece;
      const io::SafetensorsFile& file = opened(place->part);
      const std::string name = fmt::format("{}/{}", name_of(buffer), manifest.tensors[tensor].name);
      const io::SafetensorsTensor& stored = file.tensor(name);
      // Whole blocks, counted from the beginning of the piece.
      const std::int64_t from = std::max(first, piece.first) - piece.first,
                         to = std::min(end, piece.end()) - piece.first;
      for (std::int64_t number = from / manifest.block; number * manifest.block < to; ++number) {
        const std::int64_t begin = number * manifest.block,
                           stop = std::min(piece.count, begin + manifest.block);
        block.resize(static_cast<std::size_t>(stop - begin));
        file.read(stored, static_cast<std::uint64_t>(begin), std::span<float>(block));
        const std::uint32_t crc = io::crc32_of(std::span<const float>(block));
        require(crc == piece.checksums[static_cast<std::size_t>(buffer)][static_cast<std::size_t>(number)],
                "{}: tensor {} is damaged (the CRC-32 of its elements {} to {} is not the one in {}): {}",
                file.path(), name, piece.first + begin, piece.first + stop - 1, manifest_file,
                bad_checkpoint_advice);
        const std::int64_t low = std::max(begin, from), high = std::min(stop, to);
        use(piece.first + low - first,
            std::span<const float>(block).subspan(static_cast<std::size_t>(low - begin),
                                                  static_cast<std::size_t>(high - low)));
      }
    }
  }

 private:
  struct StoredPiece {
    std::size_t part;
    const TensorPiece* piece;
  };

  static fs::path manifest_path(const fs::path& folder) { return folder / manifest_file; }
  static std::string text_of(const fs::path& folder) {
    const fs::path file = manifest_path(folder);
    std::error_code error;
    require(fs::exists(fs::symlink_status(file, error)),
            "{} is no checkpoint of Annulus (there is no {} in it: it was never finished): {}",
            folder.string(), manifest_file, bad_checkpoint_advice);
    return read_text(file, kinds::manifest, Links::refuse);
  }

  void require_size(const PartFile& part) const {
    std::error_code error;
    const fs::path file = path / part.file;
    require_no_link(file, "a part of a checkpoint");
    const auto size = fs::file_size(file, error);
    require(!error, "{}: a part of the checkpoint cannot be read ({}): {}", file.string(), error.message(),
            bad_checkpoint_advice);
    require(size == part.bytes,
            "{}: a part of the checkpoint has {} bytes, {} in {}: it is truncated or damaged; {}",
            file.string(), size, part.bytes, manifest_file, bad_checkpoint_advice);
  }

  /// The file of a part, whose tensors are those of the manifest.
  const io::SafetensorsFile& opened(std::size_t number) const {
    const std::lock_guard lock(mutex_);
    auto& file = files_[number];
    if (file) return *file;
    const PartFile& part = manifest.parts[number];
    require_size(part);
    auto found = std::make_unique<io::SafetensorsFile>(path / part.file, Links::refuse);
    for (const Buffer buffer : buffers)
      for (const TensorPiece& piece : part.pieces) {
        const StoredTensor& tensor = manifest.tensors[piece.tensor];
        const io::SafetensorsTensor* stored = found->find(fmt::format("{}/{}", name_of(buffer), tensor.name));
        require(stored != nullptr && stored->dtype == DType::f32 &&
                    stored->bytes() == static_cast<std::uint64_t>(piece.count) * sizeof(float),
                "{} does not hold elements {} to {} of {}/{}, as {} says: it is damaged; {}", found->path(),
                piece.first, piece.end() - 1, name_of(buffer), tensor.name, manifest_file,
                bad_checkpoint_advice);
      }
    file = std::move(found);
    return *file;
  }

  std::vector<std::vector<StoredPiece>> pieces_;                     // of each tensor, in order
  mutable std::mutex mutex_;                                         // of files_
  mutable std::vector<std::unique_ptr<io::SafetensorsFile>> files_;  // of each part, once it was asked for
};

Checkpoint::Checkpoint(fs::path path, Check check) {
  std::error_code error;
  require(!fs::is_regular_file(path, error),
          "{} is a file, and no checkpoint of version {}, which is a folder: use the program that wrote it",
          path.string(), manifest_version);
  folder_ = std::make_unique<Folder>(std::move(path), check);
}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

const fs::path& Checkpoint::path() const {
  return folder_->path;
}
const Manifest& Checkpoint::manifest() const {
  return folder_->manifest;
}
const Progress& Checkpoint::progress() const {
  return manifest().progress;
}
const std::string& Checkpoint::creator() const {
  return manifest().creator;
}
const std::vector<StoredTensor>& Checkpoint::tensors() const {
  return manifest().tensors;
}
std::int64_t Checkpoint::parts() const {
  return std::ssize(manifest().parts);
}
std::uint64_t Checkpoint::bytes() const {
  std::uint64_t bytes = 0;
  for (const PartFile& part : manifest().parts) bytes += part.bytes;
  return bytes;
}

void Checkpoint::require_tensors(std::span<const StoredTensor> tensors) const {
  std::map<std::string, const StoredTensor*> here;
  for (const StoredTensor& tensor : this->tensors()) here.emplace(tensor.name, &tensor);
  for (const StoredTensor& tensor : tensors) {
    const auto found = here.find(tensor.name);
    require(found != here.end(),
            "{}: there is no tensor {}, which the model has: the checkpoint is of another model",
            path().string(), tensor.name);
    require(found->second->extents == tensor.extents,
            "{}: {} has shape ({}), the model's is ({}): the checkpoint is of another model", path().string(),
            tensor.name, fmt::join(found->second->extents, ", "), fmt::join(tensor.extents, ", "));
  }
  require(here.size() == tensors.size(),
          "{} holds {} tensors, the model has {}: the checkpoint is of another model", path().string(),
          here.size(), tensors.size());
}

void Checkpoint::read(Buffer buffer, const std::string& tensor, std::int64_t first, std::int64_t count,
                      const Use& use) const {
  const auto found = folder_->by_name.find(tensor);
  require(found != folder_->by_name.end(), "{}: there is no tensor {}", path().string(), tensor);
  const std::int64_t elements = tensors()[found->second].elements();
  require(first >= 0 && count >= 0 && count <= elements && first <= elements - count,
          "{}: elements [{}, {} + {}) of tensor {} were asked for, which has {}", path().string(), first,
          first, count, tensor, elements);
  if (count > 0) folder_->read(buffer, found->second, first, count, use);
}

void Checkpoint::verify(const std::function<void(std::uint64_t)>& seen) const {
  std::uint64_t bytes = 0;
  for (const Buffer buffer : buffers)
    for (const StoredTensor& tensor : tensors())
      read(buffer, tensor.name, 0, tensor.elements(), [&](std::int64_t, std::span<const float> values) {
        bytes += values.size_bytes();
        if (seen) seen(bytes);
      });
}

}  // namespace annulus::checkpoint
