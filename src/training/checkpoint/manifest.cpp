#include "training/checkpoint/manifest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include <annulus/base/error.hpp>

#include "training/checkpoint/checksum_line.hpp"
#include "training/io/json.hpp"

namespace annulus::checkpoint {

namespace {

using nlohmann::json;

constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max() / 64;  // elements; their bytes fit
constexpr std::int64_t most_block = std::int64_t{1} << 26;  // elements, which are in memory at once

// What a manifest says, which is believed after it was checked.
class ManifestReader {
 public:
  explicit ManifestReader(const std::string& origin) : origin_(origin) {}

  template <class... Arguments>
  [[noreturn]] void refuse(fmt::format_string<Arguments...> format, Arguments&&... arguments) const {
    fail("{}: {}: {}", origin_, fmt::format(format, std::forward<Arguments>(arguments)...),
         bad_checkpoint_advice);
  }

  json parse(std::string_view text) const { return io::parse_json(text, origin_); }

  /// A member of that type.
  template <class T>
  T get(const json& of, const char* key) const {
    try {
      return of.at(key).get<T>();
    } catch (const json::exception&) {
      refuse("'{}' is missing or of another type", key);
    }
  }
  std::int64_t integer(const json& value, const char* key, std::int64_t least,
                       std::int64_t largest = most) const {
    // A number beyond int64 is unsigned to the library.
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() || value.get<std::uint64_t>() <= std::uint64_t{most});
    if (!fits || value.get<std::int64_t>() < least || value.get<std::int64_t>() > largest)
      refuse("'{}' is no whole number of {} to {}", key, least, largest);
    return value.get<std::int64_t>();
  }
  std::int64_t number(const json& of, const char* key, std::int64_t least,
                      std::int64_t largest = most) const {
    return integer(get<json>(of, key), key, least, largest);
  }
  json array(const json& of, const char* key) const { return get<json::array_t>(of, key); }

  StoredTensor tensor(const json& from) const {
    StoredTensor tensor{get<std::string>(from, "name"), {}};
    if (get<std::string>(from, "dtype") != "F32") refuse("tensor {} is not F32", tensor.name);
    std::int64_t elements = 1;
    for (const json& extent : array(from, "shape")) {
      const std::int64_t size = integer(extent, "shape", 1);
      if (elements > most / size) refuse("tensor {} is too large", tensor.name);
      elements *= size;
      tensor.extents.push_back(static_cast<std::uint64_t>(size));
    }
    if (tensor.name.empty() || tensor.extents.empty()) refuse("a tensor has no name or no shape");
    return tensor;
  }

  SetProgress set(const json& from) const {
    return {.name = get<std::string>(from, "name"),
            .weight = number(from, "weight", 1),
            .epoch = number(from, "epoch", 0),
            .sequences_read = number(from, "sequences_read", 0),
            .sequences = number(from, "sequences", 0),
            .drawn = number(from, "drawn", 0),
            .shards = number(from, "shards", 0),
            .fingerprint = static_cast<std::uint32_t>(
                number(from, "fingerprint", 0, std::numeric_limits<std::uint32_t>::max()))};
  }

  PartFile part(const json& from) const {
    PartFile part;
    part.file = get<std::string>(from, "file");
    // It is opened: nothing but a name, or it might be any file of the machine.
    if (!part.file.starts_with("part-") || !is_plain_name(part.file))
      refuse("the part '{}' is not the name of a part in this folder", part.file);
    part.bytes = static_cast<std::uint64_t>(number(from, "bytes", 1));
    for (const json& piece : array(from, "pieces")) {
      TensorPiece& read = part.pieces.emplace_back();
      read.tensor = static_cast<std::size_t>(number(piece, "tensor", 0));
      read.first = number(piece, "first", 0);
      read.count = number(piece, "count", 1);
      for (const Buffer buffer : buffers)
        for (const json& crc : array(get<json>(piece, "crc32"), name_of(buffer).data()))
          read.checksums[static_cast<std::size_t>(buffer)].push_back(static_cast<std::uint32_t>(
              integer(crc, "crc32", 0, std::numeric_limits<std::uint32_t>::max())));
    }
    return part;
  }

  // Every element lies in one piece, and every piece has its checksums.
  void check(const Manifest& manifest) const {
    std::set<std::string> names;
    for (const StoredTensor& tensor : manifest.tensors)
      if (!names.insert(tensor.name).second) refuse("two tensors are named {}", tensor.name);
    names.clear();
    struct Interval {
      std::int64_t first, end;
    };
    std::vector<std::vector<Interval>> ranges(manifest.tensors.size());
    for (const PartFile& part : manifest.parts) {
      if (!names.insert(part.file).second) refuse("two parts are named {}", part.file);
      for (const TensorPiece& piece : part.pieces) {
        if (piece.tensor >= ranges.size()) refuse("{} has a piece of a tensor that is not there", part.file);
        const std::int64_t blocks = piece.count / manifest.block + (piece.count % manifest.block != 0);
        for (const auto& checksums : piece.checksums)
          if (std::ssize(checksums) != blocks)
            refuse("{} has {} checksums of a piece with {} blocks", part.file, checksums.size(), blocks);
        ranges[piece.tensor].push_back({piece.first, piece.end()});
      }
    }
    for (std::size_t tensor = 0; tensor < ranges.size(); ++tensor) {
      auto& of = ranges[tensor];
      std::sort(of.begin(), of.end(), [](const Interval& a, const Interval& b) { return a.first < b.first; });
      std::int64_t covered = 0;
      for (const Interval& range : of) {
        if (range.first != covered)
          refuse("element {} of tensor {} is not there just once", std::min(range.first, covered),
                 manifest.tensors[tensor].name);
        covered = range.end;
      }
      if (covered != manifest.tensors[tensor].elements())
        refuse("the parts have {} elements of tensor {}, which has {}", covered,
               manifest.tensors[tensor].name, manifest.tensors[tensor].elements());
    }
  }

 private:
  const std::string& origin_;
};

json to_json(const SetProgress& set) {
  return {{"name", set.name},           {"weight", set.weight},
          {"epoch", set.epoch},         {"sequences_read", set.sequences_read},
          {"sequences", set.sequences}, {"drawn", set.drawn},
          {"shards", set.shards},       {"fingerprint", set.fingerprint}};
}

json to_json(const PartFile& part) {
  json pieces = json::array();
  for (const TensorPiece& piece : part.pieces) {
    json checksums;
    for (const Buffer buffer : buffers)
      checksums[std::string(name_of(buffer))] = piece.checksums[static_cast<std::size_t>(buffer)];
    pieces.push_back(
        {{"tensor", piece.tensor}, {"first", piece.first}, {"count", piece.count}, {"crc32", checksums}});
  }
  return {{"file", part.file}, {"bytes", part.bytes}, {"pieces", std::move(pieces)}};
}

}  // namespace

std::string to_text(const PartFile& part) {
  return to_json(part).dump();
}

PartFile parse_part(std::string_view text, const std::string& origin) {
  const ManifestReader reader(origin);
  return reader.part(reader.parse(text));
}

std::string part_file(int part, int parts) {
  return fmt::format("part-{:05}-of-{:05}.safetensors", part, parts);
}

std::string Manifest::to_text() const {
  json tensors_json = json::array(), parts_json = json::array();
  for (const StoredTensor& tensor : tensors)
    tensors_json.push_back({{"name", tensor.name}, {"dtype", "F32"}, {"shape", tensor.extents}});
  for (const PartFile& part : parts) parts_json.push_back(to_json(part));
  json sets_json = json::array();
  for (const SetProgress& set : progress.sets) sets_json.push_back(to_json(set));
  const json all{{"format", manifest_format},
                 {"version", manifest_version},
                 {"creator", creator},
                 {"step", progress.step},
                 {"epoch", progress.epoch},
                 {"sequences_read", progress.sequences_read},
                 {"global_batch_size", progress.global_batch_size},
                 {"skipped_steps", progress.skipped_steps},
                 {"skipped_in_a_row", progress.skipped_in_a_row},
                 {"data_fingerprint", progress.data_fingerprint},
                 {"config", progress.config},
                 {"computed_with", progress.computed_with},
                 {"sets", std::move(sets_json)},
                 {"block", block},
                 {"tensors", std::move(tensors_json)},
                 {"parts", std::move(parts_json)}};
  // What a text editor shows of it need not be pretty, but the first kilobytes are what people look for.
  return with_checksum_line(all.dump(-1, ' ', false, json::error_handler_t::replace));
}

Manifest Manifest::parse(std::string_view text, const std::string& origin) {
  const ManifestReader reader(origin);
  if (!has_checksum_line(text))
    reader.refuse("it is damaged or truncated (its CRC-32 is not the one in its first line)");
  const json all = reader.parse(text);
  Manifest manifest;
  const std::string format = reader.get<std::string>(all, "format");
  if (format != manifest_format) reader.refuse("its format is '{}', not '{}'", format, manifest_format);
  const std::int64_t version = reader.number(all, "version", 0);
  require(version == manifest_version,
          "{} has checkpoint version {}, this program reads {}: use the program that wrote it", origin,
          version, manifest_version);
  manifest.creator = reader.get<std::string>(all, "creator");
  manifest.progress = {.step = reader.number(all, "step", 0),
                       .epoch = reader.number(all, "epoch", 0),
                       .sequences_read = reader.number(all, "sequences_read", 0),
                       .global_batch_size = reader.number(all, "global_batch_size", 0),
                       .skipped_steps = 0,
                       .skipped_in_a_row = 0,
                       .data_fingerprint = static_cast<std::uint32_t>(reader.number(
                           all, "data_fingerprint", 0, std::numeric_limits<std::uint32_t>::max())),
                       .config = reader.get<std::string>(all, "config"),
                       .computed_with = {},
                       .sets = {}};
  // Manifests of older programs lack the next three.
  if (all.contains("computed_with"))
    manifest.progress.computed_with = reader.get<std::map<std::string, std::string>>(all, "computed_with");
  if (all.contains("skipped_steps")) {
    manifest.progress.skipped_steps = reader.number(all, "skipped_steps", 0, manifest.progress.step);
    manifest.progress.skipped_in_a_row =
        reader.number(all, "skipped_in_a_row", 0, manifest.progress.skipped_steps);
  }
  if (all.contains("sets"))
    for (const json& set : reader.array(all, "sets")) manifest.progress.sets.push_back(reader.set(set));
  manifest.block = reader.number(all, "block", 1, most_block);
  for (const json& tensor : reader.array(all, "tensors")) manifest.tensors.push_back(reader.tensor(tensor));
  for (const json& part : reader.array(all, "parts")) manifest.parts.push_back(reader.part(part));
  reader.check(manifest);
  return manifest;
}

}  // namespace annulus::checkpoint
